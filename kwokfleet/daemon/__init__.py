"""The long-running process: trigger, passes, dispatcher, workers, status, metrics.

Entry point: `daemon.Daemon`. `dispatcher` starts one `fleet_worker` per Fleet, `wave_runs` and `kwok_manager`
drive waves and kwok, `snapshot` is what the daemon shows. May import: everything below it.
"""
