"""`kwokfleet test`: follows a running daemon until its Waves are finished and judged.

Entry point: `runner.ExperimentRunner`. `progress` is pure. May import: daemon and below.
"""
