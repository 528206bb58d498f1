"""python -m analysis report RESULTS: the tables and figures anew, and the page that explains them.

Exit codes: 0 done; 1 written, but a part could not be made, which the page and the last lines name; 2 not a results
folder, or one that cannot be written to.
"""

from __future__ import annotations

from analysis.commands.messages import OK, Out, ResultsFolder, exit_code


def report(results: ResultsFolder, out: Out = None) -> int:
    """Write report.html, which needs no other file; report.md with the same text; tables, figures and samples.npz."""

    def command() -> int:
        import analysis
        from analysis.execution import process_pool

        paths = analysis.write(results, process_pool.available_processes(), out=out, page=True)
        page = next(path for path in paths if path.suffix == ".html")
        print(f"{page} ({page.stat().st_size / 1e6:.1f} MB), and {len(paths) - 1} files beside it")
        return OK

    return exit_code(command, f"{out or results} cannot be written to")
