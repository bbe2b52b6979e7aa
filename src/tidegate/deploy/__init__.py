"""Files that bring a lock to hosts: launch scripts, systemd units, Prometheus scrape configuration.

In: a `Lock`. Out: text, by file name. The same lock gives the same bytes; every file says which lock it came from, and
to change the lock instead of it. Nothing here is started or copied anywhere.
"""
