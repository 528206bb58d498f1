"""The two ways in which a sweep refuses to start. Both carry whole sentences for a person, never a traceback."""


class Problems(Exception):
    """Everything that is wrong with a study or a command line, as lines `file:line: what, and what would be right`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Trouble(Exception):
    """Something on this machine is in the way: a folder, a disk, data. The study may be right."""
