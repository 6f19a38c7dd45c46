"""Caches that follow the API server: list once, then watch.

Entry point: `informer`. `reflector` lists and watches one kind, `store` keeps managed objects reduced to the fields
that matter, `full_objects` keeps them complete, `timed_events` passes on watch events with their arrival time.
May import: kube.
"""
