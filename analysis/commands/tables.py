"""python -m analysis RESULTS: the tables in the terminal, tables and figures on disk.

Exit codes: 0 done; 1 but for a part that could not be made, which it names; 2 not a results folder, or one that
cannot be written to.
"""

from __future__ import annotations

from analysis.commands.messages import OK, Out, Quiet, ResultsFolder, exit_code, files_written


def tables(results: ResultsFolder, quiet: Quiet = False, out: Out = None) -> int:
    """Print the tables of a study; write its tables and figures."""

    def command() -> int:
        from rich.console import Console

        import analysis
        from analysis.execution import process_pool

        paths = analysis.write(results, process_pool.available_processes(), None if quiet else Console(), out)
        print(files_written(paths))
        return OK

    return exit_code(command, f"{out or results} cannot be written to")
