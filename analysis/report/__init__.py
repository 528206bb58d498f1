"""The report: one page that answers, says how far to trust the answer, and shows what it rests on.

    Results, views, figures, what only the records hold (origins.py)
          |  answer.py, trust.py, sections.py: the parts of each section (page.py); worth.py: which of them are open
          v
        Report  --rendering.py-->  report.html   one file, no network: styles, script and figures are in it
                                   report.md     the same words, figures beside it

A section says plainly what it does not have. rendering.py escapes what others wrote.
"""
