"""The report: one page that answers, says how far to trust the answer, and shows what it rests on.

    Results, figures, what only the records hold (origins.py)
          |  sections/  one module a section: frames of the analysis -> parts (content.py)
          v
      list[Section]  --html.py---->  report.html   one file, no network: styles, script and figures are in it
                     --markdown.py-> report.md     the same words, figures beside it

A section says plainly what it does not have. What others wrote is escaped where it is written: by the template, and by
markdown.py.
"""
