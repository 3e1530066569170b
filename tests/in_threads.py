"""Work done by several threads at the same time."""

import threading


def in_threads(work, count):
    """What `work(number)` gives for each number below `count`, each in a thread of its own.

    None begins before all are there; what one of them raises is raised here.
    """
    together = threading.Barrier(count)
    found, errors = [None] * count, []

    def run(number):
        try:
            together.wait()
            found[number] = work(number)
        except BaseException as error:  # which would be lost with the thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return found
