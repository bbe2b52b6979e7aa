"""One host: the processes that Tidegate starts there, and their end.

In: argv and environment. Out: running, logged, bounded processes of their own group, and typed ends. May not be
touched: a process Tidegate did not start.
"""
