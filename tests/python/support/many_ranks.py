"""A team of ranks in one process, which stands for MPI's where work is shared."""

from __future__ import annotations

import pickle
import random


class ManyRanks:
    """A team whose ranks work one after another, each with a copy of the job of its own, on tasks in any order."""

    sends_entries = True  # as the leader of an MPI job

    leads, memory_is_each, threads, node_rank = True, False, 1, 0

    def __init__(self, size: int, seed: int) -> None:
        self.size = self.node_size = size
        self._random = random.Random(seed)

    def share(self, job: object, tasks: list, sizes: list[int], progress: object = None) -> list:
        ranks = []
        for rank in range(self.size):
            self.node_rank = rank
            ranks.append(pickle.loads(pickle.dumps(job)))
            ranks[-1].arrive(self)
        outcomes: dict[int, object] = {}
        for at in self._random.sample(range(len(tasks)), len(tasks)):
            task = pickle.loads(pickle.dumps(tasks[at]))
            outcomes[at] = pickle.loads(pickle.dumps(self._random.choice(ranks).run(task)))
        return [outcomes[at] for at in range(len(tasks))]
