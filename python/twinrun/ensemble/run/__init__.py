"""How the tasks of a study are run: the runner, its engines (local, batch systems), and the watcher beside
each task.
"""
