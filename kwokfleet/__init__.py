"""kwokfleet keeps a live cluster equal to files that declare a simulated fleet."""

__version__ = "0.2.0"
