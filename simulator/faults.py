"""What goes wrong, and when: drawn from the seed, each seed with its own mix.

Zombies find most: an incarnation that is replaced and lives on, for long, while its replacement crawls. So they
are drawn most often.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from simulator.cluster import Cluster
from simulator.container import SimContainer
from simulator.readers import Publisher
from simulator.storage import Folder
from simulator.world import Steps, World

_STAYS_AWAY = 0.4
"""How often a container that was killed isn't replaced for long, where others go on without it."""


class Faults:
    """The bad luck of one run."""

    def __init__(self, world: World, cluster: Cluster, publishers: list[Publisher]) -> None:
        self.world = world
        self.cluster = cluster
        self.publishers = publishers
        self.over = False
        kinds: list[tuple[float, Callable[[], None]]] = [
            (4, self._kill),
            (6, self._zombie),
            (1, self._pause),
            (2, self._slow),
            (2, self._kill_several),
            (1, self._coordinator),
            (1, self._clock),
            (1, self._folder),
            (2, self._hold),
            (2, self._disk),
            (1, self._drain),
            (2, self._reader),
            *((weight, partial(self._of_cluster, number)) for number, (weight, _) in enumerate(cluster.faults())),
        ]
        # Each run knows only some kinds, and those in other proportions: rare mixtures come up, too.
        self._kinds = [(weight * world.chance.random() ** 2, kind) for weight, kind in kinds]

    def run(self) -> Steps:
        """Strike until the time of faults is over; then heal everything."""
        world, settings = self.world, self.cluster.settings
        for _ in range(settings.faults):
            left = max(0.0, settings.faults_until - world.now)
            yield min(left, world.chance.expovariate(settings.faults / settings.faults_until))
            if world.now >= settings.faults_until:
                break
            weights = [weight for weight, _ in self._kinds]
            world.chance.choices([kind for _, kind in self._kinds], weights)[0]()
        yield max(0.0, settings.faults_until - world.now)
        self._heal()

    def _of_cluster(self, number: int) -> None:
        """What else can go wrong with the cluster that there is by then: a restored app has another one."""
        self.cluster.faults()[number][1]()

    def _drain(self) -> None:
        self.cluster.drain()

    def _heal(self) -> None:
        self.over = True
        for log in (*self.cluster.logs.values(), *self.cluster.changelogs.values()):
            log.held_until = 0.0
        for container in self.cluster.containers:
            container.actor.slowness = 1.0
            container.disk_fails = container.gives_up = False
        self.cluster.heal()
        for publisher in self.publishers:
            for zombie in publisher.actors[:-1]:
                zombie.kill()
            if not publisher.actors[-1].alive:
                publisher.begin()
        self.world.tell("faults", "are over")

    def _living(self) -> list[SimContainer]:
        return [container for container in self.cluster.containers if container.alive]

    def _one(self) -> SimContainer | None:
        living = self._living()
        return self.world.chance.choice(living) if living else None

    def _kill(self) -> None:
        victim = self._one()
        if victim is not None:
            self.world.tell(victim.name, "is killed")
            victim.die()
            if self.cluster.impatient and self.world.limits.random() < _STAYS_AWAY:
                self.cluster.vacant[victim.seat] = self.world.now + 150 + self.world.limits.random() * 300

    def _kill_several(self) -> None:
        """A machine dies, with most of what runs on it."""
        host = self.world.chance.randrange(self.cluster.settings.hosts)
        for victim in self._living():
            if victim.host == host and self.world.chance.random() < 0.7:
                self.world.tell(victim.name, "is killed with its host")
                victim.die()

    def _zombie(self) -> None:
        chance = self.world.chance
        victim = self._one()
        if victim is None or self.cluster.current.get(victim.seat) is not victim:
            return
        self.world.tell(victim.name, "is believed dead, and lives on")
        if chance.random() < 0.6:
            victim.actor.pause(chance.random() * 150)
        self.cluster.suspect(victim)
        if chance.random() < 0.4:
            self.world.after(20 + chance.random() * 20, lambda: self._crawl(victim))

    def _crawl(self, victim: SimContainer) -> None:
        replacement = self.cluster.current.get(victim.seat)
        if replacement is not None and replacement is not victim and not self.over:
            self.world.tell(replacement.name, "crawls")
            replacement.actor.slowness = 30.0
            self.world.after(150, lambda: _walk(replacement))

    def _pause(self) -> None:
        victim = self._one()
        if victim is not None:
            ms = self.world.chance.random() * 120
            self.world.tell(victim.name, f"pauses for {ms:.0f} ms")
            victim.actor.pause(ms)

    def _slow(self) -> None:
        victim = self._one()
        if victim is not None:
            self.world.tell(victim.name, "becomes slow")
            victim.actor.slowness = self.world.chance.choice((3.0, 10.0))

    def _clock(self) -> None:
        """A clock jumps, either way."""
        victim = self._one()
        if victim is not None:
            jump = self.world.chance.uniform(-3, 3) * self.cluster.settings.interval_ms
            self.world.tell(victim.name, f"its clock jumps by {jump:+.0f} ms")
            victim.skew += jump

    def _coordinator(self) -> None:
        self.cluster.crash_coordinator(self.world.chance.random() * 100)

    def _folder(self) -> None:
        """A local folder is lost or damaged while nobody has it open."""
        chance = self.world.chance
        found = (item for host in self.cluster.disks for item in host.items())
        folders: list[Folder] = [f for path, f in found if f.owner is None and "." not in path.name]  # no stand-ins
        if folders:
            folder = chance.choice(folders)
            if chance.random() < 0.5:
                self.world.tell("disk", "a local folder is wiped")
                folder.wipe()
            elif folder.local is not None:
                self.world.tell("disk", "a local folder is damaged")
                damaged = bytearray(folder.local)
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
                folder.local = bytes(damaged)

    def _hold(self) -> None:
        """Nothing lands in one log for a while."""
        chance = self.world.chance
        logs = [*self.cluster.logs.values(), *self.cluster.changelogs.values()]
        log = chance.choice(logs)
        log.held_until = self.world.now + chance.random() * 80
        self.world.tell("network", f"{log.name} takes no appends for {log.held_until - self.world.now:.0f} ms")

    def _disk(self) -> None:
        """A process doesn't know what it has written, and dies of that, or gives up what isn't committed."""
        victim = self._one()
        if victim is not None and self.world.chance.random() < 0.5:
            victim.disk_fails = True
        elif victim is not None:
            victim.gives_up = True

    def _reader(self) -> None:
        if not self.publishers:
            return
        publisher = self.world.chance.choice(self.publishers)
        if self.world.chance.random() < 0.7:
            for actor in publisher.actors:
                actor.kill()
        self.world.tell("faults", f"a reader of {publisher.ssp} restarts")
        publisher.begin()


def _walk(container: SimContainer) -> None:
    container.actor.slowness = 1.0
