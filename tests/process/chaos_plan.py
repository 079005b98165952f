"""What a round of chaos.py does, drawn from its seed before anything runs: a cluster, a job, faults and what must come of them."""
import dataclasses
import random

SIZES = [  # elements of each tensor
    (1,),
    (1, 7, 100),
    (70_000,),
    (5, 70_000, 100_000, 3_000),
    (400_000, 1_000, 90_000),
    (3_000_000,),
    (1_500_000, 2_000, 700_000),
]
ENDED, PEER_LOST = 0, 75


@dataclasses.dataclass
class Fault:
    """`victim`: number of a server or rank. `gap`: seconds after the one before, or after the moment. `hold`: seconds between a
    SIGSTOP and its SIGCONT, or for which a link is cut; 0: for good. `server`: the other end of a link."""
    kind: str
    victim: int = 0
    gap: float = 0.0
    hold: float = 0.0
    server: int = 0

    def __str__(self):
        words = {"kill": "kill -9 server {}", "restart": "kill -9 server {}, another on its port",
                 "drain": "SIGTERM server {}", "stop": "stop server {} for {:.1f} s",
                 "pause": "stop server {} for {:.1f} s", "kill worker": "kill -9 rank {}",
                 "pause worker": "stop rank {} for {:.1f} s", "cut": "cut a lane of server {}",
                 "kill scheduler": "kill -9 the scheduler", "cut control": "cut a connection of the scheduler",
                 "restart scheduler": "kill -9 the scheduler, another on its port {1:.1f} s later",
                 "cut link": "cut the link of rank {0} to server {2}, silently",
                 "mend link": "cut the link of rank {0} to server {2}, silently, for {1:.1f} s",
                 "cut off": "cut all links of rank {0} to servers, silently"}
        text = words[self.kind].format(self.victim, self.hold, self.server)
        return f"{self.gap:.2f} s later {text}" if self.gap else text


@dataclasses.dataclass
class Plan:
    transport: str
    workers: int
    servers: int
    shards: int
    sizes: tuple
    priorities: bool
    broadcast: bool
    # Seconds after the first round, or after the start of the workers.
    running: bool
    moment: float
    faults: list
    # The job goes on for so many seconds after the faults and what they led to.
    rest: float
    # "" if the job must survive, else a pattern: the rank or server that the error must name.
    names: str = ""
    # The rank that is lost from a job with worker_loss=shrink, which must survive it.
    shrinks: int | None = None
    # Each process on a host of its own: server S on S + 1, the ranks behind them.
    hosts: bool = False
    # Ranks that sum on their host first: so many of each, all on this machine. Empty: none do.
    groups: tuple = ()
    # Of each worker, over TCP; 0: as many as the library thinks best.
    data_threads: int = 0
    # After each push_pull the other rounds, also of pairs of ranks, calls without names, messages and exchanges.
    exchanges: bool = False
    # After so many rounds tensors are dropped and declared again; 0: never.
    drop_every: int = 0

    def __str__(self):
        megabytes = sum(self.sizes) * 4e-6
        extra = (", priorities" if self.priorities else "") + (", broadcast" if self.broadcast else "")
        extra += ", shrink" if self.shrinks is not None else ""
        extra += f", groups of {' and '.join(map(str, self.groups))}" if self.groups else ""
        extra += f", {self.data_threads} data threads" if self.data_threads else ""
        extra += ", exchanges" if self.exchanges else ""
        extra += f", dropped every {self.drop_every} rounds" if self.drop_every else ""
        when = f"{self.moment:.2f} s after {'round 1' if self.running else 'the start'}"
        return (f"{self.transport}, {self.workers} workers, {self.servers} servers, {self.shards} shards, {len(self.sizes)} tensors of "
                f"{megabytes:.3g} MB{extra}; {when}: {'; '.join(map(str, self.faults)) or 'nothing'}")


SURVIVED = ("kill", "kill", "kill", "restart", "restart", "drain", "drain", "stop", "pause", "pause worker", "cut",
            "restart scheduler", "restart scheduler", "restart scheduler", "cut control")
FATAL = ("kill worker", "kill scheduler", "kill all", "kill worker", "none")


def cut_links(plan, dice):
    """Instead of the faults that it has."""
    plan.transport, plan.hosts, plan.running = "tcp", True, True
    plan.workers, plan.servers = max(plan.workers, 2), max(plan.servers, 2)
    plan.names, plan.shrinks = "", None
    rank, server = dice.randrange(1, plan.workers), dice.randrange(plan.servers)
    kind = dice.choice(("cut link", "cut link", "mend link", "cut off"))
    plan.faults = [Fault(kind, rank, 0.0, dice.uniform(0.2, 2) if kind == "mend link" else 0.0, server)]
    if kind == "cut off" and dice.random() < 0.5:
        plan.shrinks = rank
    elif kind == "cut off":
        plan.names = rf"rank {rank}\b.*its links to server \d+ .* are cut|declared dead: your links to server \d+ .* are cut"


def draw(seed, transport="", can_cut=True, can_link=True):
    """The same for the same arguments. A transport that is given replaces only that one."""
    dice = random.Random(seed)
    drawn = dice.choice(("tcp", "shm"))
    transport = transport or drawn
    plan = Plan(transport, dice.choice((1, 2, 2, 3, 4)), dice.randint(2, 4), dice.choice((1, 1, 2)), dice.choice(SIZES),
                dice.random() < 0.5, dice.random() < 0.4, dice.random() < 0.7, dice.choice((0.0, dice.uniform(0, 0.2))), [],
                dice.uniform(0, 0.3))
    kinds = [dice.choice(SURVIVED) for _ in range(dice.choice((1, 2, 2)))]
    if dice.random() < 0.25:
        kinds = [*kinds[1:], dice.choice(FATAL)]
    order = list(range(5))
    dice.shuffle(order)
    gaps = [dice.choice((0.0, dice.uniform(0, 1))) for _ in kinds]
    holds = [dice.random() for _ in kinds]
    victims = dice.randrange(12)  # divisible by every number of workers
    shrinks = dice.random() < 0.5
    if "cut" in kinds and not (can_cut and transport == "tcp"):
        kinds = ["kill" if kind == "cut" else kind for kind in kinds]
    if "cut control" in kinds and not can_cut:
        kinds = ["restart scheduler" if kind == "cut control" else kind for kind in kinds]
    if "cut control" in kinds:
        # Who stands still cannot come back within the grace.
        kinds = ["none" if kind in ("pause", "pause worker") else kind for kind in kinds]
    if "restart scheduler" in kinds:
        # Who stands still while nobody looks is there again before it is missed.
        kinds = ["kill" if kind == "stop" else "none" if kind in ("kill all", "kill scheduler") else kind for kind in kinds]
    if kinds[-1] == "kill all":  # nobody comes, and nobody stays because it cannot drain
        kinds = ["kill" if kind in ("restart", "drain") else kind for kind in kinds]
    lost = sum(kind in ("kill", "stop", "drain", "restart") for kind in kinds)
    if kinds[-1] != "kill all":
        # A new scheduler goes on with more than half of the nodes only.
        plan.servers = max(plan.servers, 2 * lost + 1 if "restart scheduler" in kinds else lost + 1)
    servers = iter([number for number in order if number < plan.servers])
    for kind, gap, hold in zip(kinds, gaps, holds):
        gap = gap if plan.faults else 0.0
        if kind == "kill all":
            plan.running, plan.names = True, "no other server"
            gone = [fault.victim for fault in plan.faults if fault.kind in ("kill", "stop")]
            left = [number for number in order if number < plan.servers and number not in gone]
            plan.faults += [Fault("kill", number, gap if i == 0 else 0.0) for i, number in enumerate(left)]
        elif kind == "kill worker":
            plan.running, plan.workers = True, max(plan.workers, 2)
            # Rank 0 tells the others of the job that goes on when it is over.
            rank = 1 + victims % (plan.workers - 1) if shrinks else victims % plan.workers
            if shrinks:
                plan.shrinks = rank
            else:
                plan.names = rf"rank {rank}\b"
            plan.faults.append(Fault(kind, rank, gap))
        elif kind == "kill scheduler":
            plan.running, plan.names = True, "scheduler"
            plan.faults.append(Fault(kind, 0, gap))
        elif kind in ("restart scheduler", "cut control"):
            plan.running = True
            plan.faults.append(Fault(kind, victims, gap, 2 * hold if kind == "restart scheduler" else 0.0))
        elif kind == "pause worker":
            plan.faults.append(Fault(kind, victims % plan.workers, gap, 0.1 + 1.2 * hold))
        elif kind != "none":
            longest = {"stop": 6 + 2 * hold, "pause": 0.1 + 1.2 * hold}
            plan.faults.append(Fault(kind, next(servers), gap, longest.get(kind, 0.0)))
    if dice.random() < 0.15 and can_link:
        cut_links(plan, dice)
    if not plan.hosts and plan.workers > 1 and dice.random() < 0.4:
        # The rank that tells the others when it is over is in the first.
        first = dice.randint(1, plan.workers if plan.shrinks is None else plan.shrinks)
        plan.groups = tuple(count for count in (first, plan.workers - first) if count)
    if plan.transport == "tcp" and not plan.groups:
        plan.data_threads = dice.choice((0, 0, 2, 3, 5))
    plan.drop_every = dice.choice((0, 0, 1, 3))
    # A root that is lost fails its round, and ranks that sum first know no reduce.
    plan.exchanges = dice.random() < 0.6 and plan.shrinks is None and not plan.groups
    return plan
