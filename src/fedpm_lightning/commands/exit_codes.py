"""Exit codes of the commands, and errors of a few lines."""

from __future__ import annotations

import os
import sys

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fedpm_lightning.checkpoints.restart import full_disk
from fedpm_lightning.commands.lightning_cli import FedpmCLI, command_line, quiet_lightning
from fedpm_lightning.commands.run_dir import release_folders
from fedpm_lightning.commands.wandb_logger import under_agent
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.messages import shorten
from fedpm_lightning.configuration.read import read
from fedpm_lightning.errors import DivergedError, InterruptedRun, RoundError

USER_ERRORS = (MisconfigurationException, ValueError, OSError, ImportError, SyntaxError, RoundError)


def run(argv: list[str], cli: type[FedpmCLI]) -> int:
    """Run the command and return its exit code."""
    quiet_lightning()
    try:
        command_line(cli, under_agent(read(argv)))
    except ConfigurationError as error:
        return _report(error, 2)
    except SystemExit as stop:
        return exit_code(stop)
    except KeyboardInterrupt:  # before the first round, or after the last
        return 130
    except InterruptedRun as stop:
        print(stop, file=sys.stderr)
        # The launcher takes a rank that ends with an error for a crash, and ends the others by force.
        return 0 if os.environ.get("LOCAL_RANK", "0") != "0" else 128 + stop.signal
    except DivergedError as error:
        return _report(error, 3)
    except USER_ERRORS as error:
        return _report(full_disk(error), 1)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "wandb":
            raise
        return _report(error, 1)
    finally:
        release_folders()
    return 0


def exit_code(stop: SystemExit) -> int:
    """Return the code of a signal that Lightning turned into SystemExit, with 0 for SIGTERM and 1 for Ctrl-C."""
    if isinstance(stop, SIGTERMException):
        return 143
    if isinstance(stop.__context__, KeyboardInterrupt):
        return 130
    return stop.code if isinstance(stop.code, int) else 1


def _report(error: Exception, code: int) -> int:
    if os.environ.get("FEDPM_TRACEBACK"):
        raise error
    print(f"error: {shorten(str(error))}\n(FEDPM_TRACEBACK=1 shows where)", file=sys.stderr)
    return code
