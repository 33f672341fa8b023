"""Ranks that send tensors: threads, or processes. Needs only PyTorch."""

import tempfile
import threading
from datetime import timedelta
from queue import Empty, Queue

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Threads:
    """Messages between threads: a queue for each pair of ranks."""

    def __init__(self, n, seconds):
        self.queues = {(a, b): Queue() for a in range(n) for b in range(n)}
        self.seconds = seconds

    def start(self, me, out, into):
        for r, x in out:
            self.queues[me, r].put(x.clone())

        def wait():
            for r, x in into:
                try:
                    got = self.queues[r, me].get(timeout=self.seconds)
                except Empty:
                    text = f"rank {me} waited {self.seconds} s for rank {r}"
                    raise TimeoutError(text) from None
                if isinstance(got, Exception):
                    raise RuntimeError(f"rank {r} stopped") from got
                if got.shape != x.shape:
                    text = f"rank {r} sent {[*got.shape]}, not {[*x.shape]}"
                    raise ValueError(text)
                x.copy_(got)

        return wait


class Processes:
    """Messages between processes, by a group of torch.distributed."""

    def __init__(self, group=None):
        self.group = group  # None: all processes

    def start(self, me, out, into):
        jobs = [dist.P2POp(dist.isend, x, r, self.group) for r, x in out]
        jobs += [dist.P2POp(dist.irecv, x, r, self.group) for r, x in into]
        jobs = dist.batch_isend_irecv(jobs) if jobs else []
        peers = [r for r, _ in [*out, *into]]
        if len(jobs) < len(peers):  # NCCL: one job for all
            peers = [sorted({*peers})]

        def wait():
            for job, peer in zip(jobs, peers, strict=True):
                try:
                    job.wait()
                except RuntimeError as error:
                    text = f"rank {me} got no answer from rank {peer}"
                    raise RuntimeError(text) from error

        return wait


class Group:
    """The ranks that work together, as one of them knows them."""

    def __init__(self, ranks, me, link, counter=None):
        self.ranks, self.me, self.link = [*ranks], me, link
        self.rank, self.size = self.ranks.index(me), len(self.ranks)
        self.counter = [0] if counter is None else counter

    @property
    def sent(self):
        """Bytes that left this rank, in all groups."""
        return self.counter[0]

    def part(self, ranks):
        """The group of some of these ranks; this rank is one of them."""
        ranks = [self.ranks[r] for r in ranks]
        return Group(ranks, self.me, self.link, self.counter)

    def start(self, out, into):
        """Send pairs (rank, tensor) and receive into such pairs.

        Call what is returned to wait, in the order of the starts.
        """
        out = [(self.ranks[r], x.detach().contiguous()) for r, x in out]
        into = [(self.ranks[r], x) for r, x in into]
        if not all(x.is_contiguous() for _, x in into):
            raise ValueError("a tensor to receive into is not contiguous")
        self.counter[0] += sum(x.nbytes for _, x in out)
        return self.link.start(self.me, out, into)

    def shift(self, tensors):
        """Pass tensors to the next rank; call for those of the rank before."""
        if self.size == 1:  # nobody sends to itself
            return lambda: tensors
        got = [x.new_empty(x.shape) for x in tensors]
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        wait = self.start(
            [(after, x) for x in tensors], [(before, x) for x in got]
        )

        def arrived():
            wait()
            return got

        return arrived

    def swap(self, x):
        """All-to-all: x[r] goes to rank r, and x[r] comes from rank r."""
        x = x.contiguous()
        got, others = x.clone(), [*range(self.size)]
        others.remove(self.rank)
        self.start([(r, x[r]) for r in others], [(r, got[r]) for r in others])()
        return got

    def gather(self, x):
        """All-gather: x of all ranks, stacked."""
        return self.swap(x.expand(self.size, *x.shape))

    def total(self, x):
        """All-reduce: the sum over the ranks, in the same order on all."""
        flat = x.flatten()
        parts = torch.nn.functional.pad(flat, (0, -len(flat) % self.size))
        parts = self.swap(parts.view(self.size, -1))  # one part, of all ranks
        return self.gather(parts.sum(0)).flatten()[: len(flat)].view(x.shape)

    def check(self, *tensors):
        """An error on all ranks unless shapes agree: a message of a wrong size
        may hang, or be read as another one."""
        sizes = [n for x in tensors for n in (*x.shape, x.element_size())]
        rows = self.gather(torch.tensor(sizes, device=tensors[0].device))
        for r, row in enumerate(rows.tolist()):
            if row != rows[0].tolist():
                text = f"rank {r} has sizes {row}, rank 0 {rows[0].tolist()}"
                raise ValueError(f"{text} (and bytes per element)")


def on_threads(work, n, *args, seconds=60):
    """What work(group, *args) returns on n ranks that are threads."""
    link, results, errors = Threads(n, seconds), [None] * n, []

    def one(rank):
        try:
            results[rank] = work(Group(range(n), rank, link), *args)
        except Exception as error:
            error.add_note(f"on rank {rank}")
            errors.append(error)
            for r in range(n):  # nobody waits for this rank in vain
                link.queues[rank, r].put(error)

    threads = [threading.Thread(target=one, args=(r,)) for r in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def process(rank, n, folder, seconds, work, args):
    torch.set_num_threads(1)
    store, limit = f"file://{folder}/store", timedelta(seconds=seconds)
    dist.init_process_group(
        "gloo", store, rank=rank, world_size=n, timeout=limit
    )
    torch.save(
        work(Group(range(n), rank, Processes()), *args), f"{folder}/{rank}"
    )
    dist.barrier()
    dist.destroy_process_group()


def on_processes(work, n, *args, seconds=60):
    """The same on processes: work is a function of a module."""
    how = (
        "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
    )
    with tempfile.TemporaryDirectory() as folder:
        args = (n, folder, seconds, work, args)
        mp.start_processes(process, args, nprocs=n, start_method=how)
        return [torch.load(f"{folder}/{r}") for r in range(n)]
