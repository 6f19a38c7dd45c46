"""Get the tools and definitions that tests need; print the paths of the tools."""

import os
import sys

from kwokfleet import errors, settings
from kwokfleet.cli import output, signals
from kwokfleet.embedded import crds
from tests import tools


def main() -> int:
    """Return the exit code."""
    signals.install_handlers()
    output.start_logging()
    try:
        with output.show_progress() as report:
            config = settings.from_environment(os.environ)
            paths = tools.ensure(config, report)
            crds.files(config, report, tools.PROMETHEUS_OPERATOR)
    except errors.KwokfleetError as exc:
        output.print_error(exc)
        return exc.exit_code
    except signals.Stopped as exc:
        return exc.exit_code
    for name, path in paths.items():
        output.print_line(f"{name:<8}  {path}")
    return errors.ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
