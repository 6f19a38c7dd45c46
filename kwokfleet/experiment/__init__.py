"""`kwokfleet test`: a daemon observed until its waves are finished and judged.

Entry point: `runner`. `progress` is pure. May import: daemon and below.
"""
