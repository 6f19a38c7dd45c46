"""`python -m kwokfleet`."""

from kwokfleet.cli import main

if __name__ == "__main__":
    main.main()
