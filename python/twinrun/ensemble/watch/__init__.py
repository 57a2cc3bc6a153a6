"""Runs one attempt of a task and records what it took: a separate program beside the task, on the task's
node.

usage: python -I -S .../watch/__main__.py FOLDER      FOLDER/spec.json says what to run

It imports nothing but this package and the standard library, so that it starts within some 20 ms
and needs no installation on a node: that sees this folder, which is all. Being its own process
makes three promises possible:

* What is counted is the task alone. All processes that the task leaves behind become children of this one
  (PR_SET_CHILD_SUBREAPER), so that wait4 reports the CPU time, faults and context switches of the whole tree,
  and /proc/self/io its I/O, exactly; only descendants whose parent ignored SIGCHLD are missing from these.
* A killed runner loses nothing: the attempt goes on, and the next runner finds its record in the folder.
* Nothing runs twice: `claim` is made with O_EXCL, by this program or by a runner that gives the attempt up.

    lock        held (flock) as long as this process lives      claim         who runs the attempt
    stop        the runner asks for the end                     record.json   the measurements: written once,
                whole

    program     claims the attempt                task       the first process, held at a gate
    attempt     runs it                           family     all processes of the task
    conditions  node and environment, as facts    checks     values of factors, as the task has them
    sampling    what is read while it runs        ends       threads that end, as the kernel says
    figures     what it took                      kernel     texts of /proc and /sys
    system      what the node did meanwhile       gpu        GPUs, by NVML
    signals     to this process                   cores      lists of cores

Run-queue delay: the kernel counts it for each thread, and never adds it up. Where permitted (root,
CONFIG_TASKSTATS), it sends the figures of every thread that ends: exact. Elsewhere threads are read every
`period` seconds: exact for what lives when it is read and for the task's first process, less the last period
of threads that ended in between; `coverage` is the share of the exact CPU time that the same readings saw.
"""

VERSION = 1  # of a record
