"""4: drafts → measured tables and figures.

In the order the data moves: tasks, cells, run_folder, plan, writing, judging (by judges), metrics, estimates, summary,
report (a document, with pages and plots). run_evaluation calls them all. Apart from these: studies of the sampling
itself, a sheet for human readers and their ratings, and bench for speed (against textbook).
"""
