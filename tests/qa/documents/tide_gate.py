"""Controller for the tide gate at the Merrow Sluice.

The gate keeps the sea out of the lower Merrow at high water and lets the river
run out at low water. This program runs on the small computer in the gate
house. Twice a minute it reads two level gauges, decides whether the gate
should be open or closed, drives the motor and writes one line to the journal.

The river gauge stands upstream of the gate, the sea gauge downstream. Both
report metres above the harbour datum. If you wonder why a threshold is what it
is, read the comment beside it before you change it: nearly all of them were
paid for with a wet cellar.

Maintainer: Solveig Amundsen-Pryce, water board, room 12.
First written by Kwame Dufour for the old gate; rewritten after the motor was
replaced.
"""

import argparse
import collections
import json
import logging
import statistics
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

VERSION = "3.4.1"

# Seconds between two rounds of the main loop.
ROUND_SECONDS = 30

# The gate closes when the sea stands higher than the river by this much (m).
# It was 0.10 until the swell of a passing ferry closed the gate 14 times in
# one afternoon.
CLOSE_MARGIN = 0.15

# The gate opens when the river stands higher than the sea by this much (m).
# It must be larger than zero, otherwise the gate swings on slack water.
OPEN_MARGIN = 0.08

# Above this sea level (m) the gate is closed whatever the river does.
STORM_LEVEL = 2.60

# Below this river level (m) the gate stays closed even at low water, so that
# the eel pass upstream does not fall dry. The fishery officer asked for it.
EEL_LEVEL = 0.45

# The motor needs 95 seconds for the whole way. After 140 seconds we assume that
# something is stuck in the gate and stop.
TRAVEL_SECONDS = 95
TRAVEL_LIMIT = 140

# The motor may start at most six times an hour. The windings of the first
# motor burnt out when nothing limited this.
STARTS_PER_HOUR = 6

# Number of readings of which the median is taken. An odd number, please.
WINDOW = 5

# A gauge that has not moved by more than a millimetre for this many readings
# is taken for frozen or clogged (weed, most often).
STUCK_READINGS = 240

JOURNAL = Path("/var/lib/tidegate/journal.jsonl")
SETTINGS = Path("/etc/tidegate.json")

log = logging.getLogger("tidegate")


class Gate(Enum):
    """What the gate is doing."""

    OPEN = "open"
    CLOSED = "closed"
    OPENING = "opening"
    CLOSING = "closing"
    JAMMED = "jammed"


class GaugeError(Exception):
    """A gauge gave no reading, or one that cannot be true."""


class JamError(Exception):
    """The gate did not reach its end switch in time."""


@dataclass
class Reading:
    """One pair of levels, in metres above datum."""

    sea: float
    river: float
    when: float = field(default_factory=time.time)

    @property
    def head(self):
        """How much higher the river stands than the sea."""
        return self.river - self.sea


class Gauge:
    """A pressure gauge on the serial bus.

    The raw value is in tenths of a millimetre of water above the sensor. The
    offset is the height of the sensor above the datum; it is measured with the
    levelling staff every March and kept in the settings file.
    """

    LOWEST = -1.5
    HIGHEST = 6.0

    def __init__(self, bus, address, offset):
        self.bus = bus
        self.address = address
        self.offset = offset
        self.recent = collections.deque(maxlen=WINDOW)
        self.same_count = 0
        self.last = None

    def read(self):
        """Return the median of the last readings in metres.

        Raises GaugeError if the sensor is silent, out of range or stuck.
        """
        raw = self.bus.query(self.address)
        if raw is None:
            raise GaugeError(f"gauge {self.address} does not answer")
        level = raw / 10_000 + self.offset
        if not self.LOWEST <= level <= self.HIGHEST:
            raise GaugeError(f"gauge {self.address}: {level:.3f} m is impossible")
        self._check_stuck(level)
        self.recent.append(level)
        return statistics.median(self.recent)

    def _check_stuck(self, level):
        if self.last is not None and abs(level - self.last) < 0.001:
            self.same_count += 1
        else:
            self.same_count = 0
            self.last = level
        if self.same_count >= STUCK_READINGS:
            raise GaugeError(f"gauge {self.address} seems to be stuck")


class StartCounter:
    """Remembers when the motor was started, to spare its windings."""

    def __init__(self, limit=STARTS_PER_HOUR):
        self.limit = limit
        self.starts = collections.deque()

    def may_start(self, now):
        while self.starts and now - self.starts[0] > 3600:
            self.starts.popleft()
        return len(self.starts) < self.limit

    def note(self, now):
        self.starts.append(now)


class Motor:
    """The gate motor behind its two relays and two end switches."""

    def __init__(self, relays, clock=time.monotonic, sleep=time.sleep):
        self.relays = relays
        self.clock = clock
        self.sleep = sleep
        self.counter = StartCounter()

    def position(self):
        """Read the end switches. Between the two of them we do not know."""
        if self.relays.switch("upper"):
            return Gate.OPEN
        if self.relays.switch("lower"):
            return Gate.CLOSED
        return None

    def drive(self, target, urgent=False):
        """Move the gate to `target` and wait until it is there.

        An urgent move ignores the limit on starts: in a storm we would rather
        lose the motor than the cellars of Rope Street.

        Returns the number of seconds that the move took.
        """
        if self.position() == target:
            return 0.0
        now = self.clock()
        if not urgent and not self.counter.may_start(now):
            log.warning("motor has started too often, waiting")
            return 0.0
        self.counter.note(now)
        relay = "up" if target is Gate.OPEN else "down"
        self.relays.on(relay)
        try:
            while self.position() != target:
                if self.clock() - now > TRAVEL_LIMIT:
                    raise JamError(f"no end switch after {TRAVEL_LIMIT} s")
                self.sleep(0.25)
        finally:
            # Whatever happened: never leave the motor under current.
            self.relays.off(relay)
        return self.clock() - now


def decide(reading, state):
    """Return the state that the gate should have.

    The order of the tests matters. The storm rule comes first, because it must
    win over everything. The eel rule comes second, because it only ever keeps
    the gate closed. Between the two margins nothing changes.
    """
    if reading.sea >= STORM_LEVEL:
        return Gate.CLOSED
    if reading.river < EEL_LEVEL:
        return Gate.CLOSED
    if reading.head <= -CLOSE_MARGIN:
        return Gate.CLOSED
    if reading.head >= OPEN_MARGIN:
        return Gate.OPEN
    return state


class Journal:
    """Appends one JSON object per line. The board keeps it for seven years."""

    def __init__(self, path=JOURNAL):
        self.path = path

    def write(self, event, **fields):
        entry = {"t": round(time.time()), "event": event}
        entry.update(fields)
        with self.path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")


class Alarm:
    """Calls the people on duty, one after the other, until one answers.

    The list comes from the settings file. The lock keeper is first, then the
    board's duty engineer, last the fire brigade of Merrowmouth. Nobody is
    called twice within 20 minutes for the same reason.
    """

    PAUSE = 20 * 60

    def __init__(self, modem, numbers):
        self.modem = modem
        self.numbers = numbers
        self.called = {}

    def raise_for(self, reason, now):
        last = self.called.get(reason)
        if last is not None and now - last < self.PAUSE:
            return False
        self.called[reason] = now
        for name, number in self.numbers:
            log.info("calling %s", name)
            if self.modem.call(number, reason):
                return True
        log.error("nobody answered for: %s", reason)
        return False


class Controller:
    """Ties gauges, motor, journal and alarm together."""

    def __init__(self, sea, river, motor, journal, alarm):
        self.sea = sea
        self.river = river
        self.motor = motor
        self.journal = journal
        self.alarm = alarm
        self.state = motor.position() or Gate.CLOSED
        self.failures = 0

    def round(self):
        """One round: read, decide, drive, write."""
        try:
            reading = Reading(self.sea.read(), self.river.read())
        except GaugeError as e:
            self._gauge_failed(e)
            return
        self.failures = 0
        if self.state is Gate.JAMMED:
            # A jam is cleared by hand, with the yellow switch in the gate
            # house. The program must never try again by itself: once a diver
            # was in the water.
            return
        wanted = decide(reading, self.state)
        if wanted is not self.state:
            self._move(wanted, reading)
        self.journal.write(
            "round",
            sea=round(reading.sea, 3),
            river=round(reading.river, 3),
            gate=self.state.value,
        )

    def _gauge_failed(self, error):
        """Without levels we cannot decide. After three rounds close the gate.

        A closed gate floods a meadow at worst; an open one floods the town.
        """
        self.failures += 1
        log.warning("%s (failure %d)", error, self.failures)
        self.journal.write("gauge", error=str(error))
        if self.failures == 3:
            self.alarm.raise_for("gauge", time.time())
            self._move(Gate.CLOSED, None)

    def _move(self, wanted, reading):
        urgent = reading is not None and reading.sea >= STORM_LEVEL
        try:
            seconds = self.motor.drive(wanted, urgent=urgent)
        except JamError as e:
            self.state = Gate.JAMMED
            self.journal.write("jam", error=str(e))
            self.alarm.raise_for("jam", time.time())
            return
        reached = self.motor.position()
        if reached is wanted:
            self.state = wanted
            self.journal.write("move", to=wanted.value, seconds=round(seconds, 1))
            if seconds > TRAVEL_SECONDS * 1.2:
                # Slow travel is the first sign of a worn gearbox. Grease it.
                log.warning("the gate took %.0f s", seconds)


def load_settings(path=SETTINGS):
    """Read the settings file and complain early about what is missing."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    for key in ("sea_address", "river_address", "sea_offset", "river_offset", "numbers"):
        if key not in settings:
            raise SystemExit(f"{path}: the key {key!r} is missing")
    return settings


def summary(path=JOURNAL, days=7):
    """Print how often the gate moved in the last days, and the highest sea."""
    since = time.time() - days * 86_400
    moves = 0
    jams = 0
    highest = None
    with path.open(encoding="utf-8") as f:
        for line in f:
            entry = json.loads(line)
            if entry["t"] < since:
                continue
            if entry["event"] == "move":
                moves += 1
            elif entry["event"] == "jam":
                jams += 1
            elif entry["event"] == "round":
                sea = entry["sea"]
                if highest is None or sea > highest:
                    highest = sea
    print(f"last {days} days: {moves} moves, {jams} jams")
    if highest is not None:
        print(f"highest sea level: {highest:.2f} m")


def rehearse(path):
    """Replay a file of levels without touching the motor.

    Every line holds `sea river`. Used by the apprentices on Thursdays, and by
    the maintainer before each change of a threshold. The storm of 9 January is
    kept as `january.txt` beside this file; in it the gate must close exactly
    twice.
    """
    state = Gate.OPEN
    closings = 0
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            sea, river = (float(x) for x in line.split())
            wanted = decide(Reading(sea, river), state)
            if wanted is not state:
                print(f"{number:6d}  {state.value} -> {wanted.value}")
                if wanted is Gate.CLOSED:
                    closings += 1
                state = wanted
    print(f"closed {closings} times")


def main():
    parser = argparse.ArgumentParser(description="Tide gate controller")
    parser.add_argument("--version", action="version", version=VERSION)
    parser.add_argument("--summary", action="store_true", help="print the week and stop")
    parser.add_argument("--rehearse", metavar="FILE", help="replay levels from FILE")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    if args.summary:
        summary()
        return
    if args.rehearse:
        rehearse(args.rehearse)
        return

    # Imported here, because the driver exists only in the gate house and the
    # rehearsal must run on any machine.
    from gatehouse import Bus, Modem, Relays

    settings = load_settings()
    bus = Bus("/dev/ttyS2", baud=9600)
    controller = Controller(
        Gauge(bus, settings["sea_address"], settings["sea_offset"]),
        Gauge(bus, settings["river_address"], settings["river_offset"]),
        Motor(Relays()),
        Journal(),
        Alarm(Modem("/dev/ttyS3"), settings["numbers"]),
    )
    while True:
        started = time.monotonic()
        controller.round()
        # Subtract what the round took, so that the journal keeps its rhythm.
        time.sleep(max(0.0, ROUND_SECONDS - (time.monotonic() - started)))


if __name__ == "__main__":
    main()
