"""One engine copy, iteration by iteration: who is admitted, what a forward holds, who is thrown out.

Decode steps between two events are taken in one jump. Lists, not arrays: the loop touches one request at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import islice

from perfmodel.serving.frontend import NO_FRONT, Front
from perfmodel.serving.prefix import PrefixCache
from perfmodel.serving.tables import ServerTables

_TIMELINE = 2000  # points kept of the timeline
FOREVER = float("inf")


class Copy:
    """State of one engine copy. Requests are admitted in the order of their arrival."""

    def __init__(
        self,
        tables: ServerTables,
        arrivals: Sequence[float],
        inputs: Sequence[int],
        outputs: Sequence[int],
        found: Sequence[int],
        share: int | None = None,
        ids: Sequence[Sequence[int]] | None = None,
        block: int = 512,
        front: Front = NO_FRONT,
    ) -> None:
        self.tables, self.rules = tables, tables.rules
        self.inputs, self.outputs, self.found = list(inputs), list(outputs), list(found)
        count = len(self.inputs)
        self.issued = count if share is None else min(share, count)  # a closed loop issues one as one finishes
        self.began, self.ready, self.front = list(arrivals), [0.0] * count, front
        self.free = 0.0  # when the front end is done with the last prompt
        self.first, self.finish = [0.0] * count, [0.0] * count
        self.made, self.began_step = [0] * count, [0] * count  # tokens made before a preemption
        self.now, self.step, self.next, self.ended = 0.0, 0, 0, 0
        self.before = 0.0  # when the last forward began
        self.waited = 0  # decode steps that prompts have waited for others
        self.blind = 0  # decode steps since one at which it looked for requests
        self.waiting: deque[int] = deque()
        self.parts: list[list[int]] = []  # [request, prompt tokens done] of prompts that are cut
        self.running: list[tuple[int, int, int]] = []  # heap of (last step, request, turn)
        self.turn = [0] * count  # a preempted entry in the heap has an old one
        self.left: dict[int, tuple[int, int]] = {}  # tokens of a preempted request, and those produced when it left
        self.youngest: list[tuple[int, int]] = []  # (request, turn) in the order of admission
        self.size = self.unmade = self.cached = 0  # running; their tokens to come, and in the pool
        self.parted = self.promised = 0  # of prompts that are cut: tokens in the pool, and of their answers
        self.reserve, self.least, self.loss = self.rules.reserve
        self.ids, self.cache = ids, PrefixCache(block) if ids is not None else None
        self.preempted = self.events = self.hits = 0
        self.timeline: list[tuple[float, int, int]] = []  # (time, running, tokens made so far)
        self.produced = 0
        self.progress: Callable[[int], None] | None = None
        self.stride = max(1, 3 * count // _TIMELINE)
        for request in range(self.issued):
            self._receive(request)

    def go(self, until: float = FOREVER) -> None:
        """Run the iterations that begin before ``until``."""
        while True:
            seen = self.before if self.rules.ahead and self.size else self.now
            if not (self.size and self.blind % self.rules.every):
                while self.next < self.issued and self.ready[self.next] <= seen:
                    self.waiting.append(self.next)
                    self.next += 1
            if not (self.size or self.waiting or self.parts):
                if self.next >= self.issued or self.ready[self.next] >= until:
                    break
                self.now, self.reserve = self.ready[self.next], self.rules.reserve[0]
                continue
            if self.now >= until:
                return
            if not ((self.waiting or self.parts) and self._prefill()):
                self._decode(until)
            self.events += 1
            if self.events % self.stride == 0:
                self.timeline.append((self.now, self.size, self.produced))
                if self.progress:
                    self.progress(self.ended)
        self.timeline.append((self.now, self.size, self.produced))

    def add(self, arrival: float, prompt: int, answer: int, found: int) -> int:
        """One more request, from a router that decides when it arrives."""
        for times in (self.began, self.ready):
            times.append(arrival)
        for seconds in (self.first, self.finish):
            seconds.append(0.0)
        for counts, count in ((self.inputs, prompt), (self.outputs, answer), (self.found, found), (self.made, 0),
                              (self.began_step, 0), (self.turn, 0)):  # fmt: skip
            counts.append(count)
        self._receive(self.issued)
        self.issued += 1
        return len(self.inputs) - 1

    def _receive(self, request: int) -> None:
        """The front end takes prompts one after another; then the scheduler sees them."""
        front = self.front
        prompt = self.inputs[request]
        self.free = max(self.free, self.began[request]) + front.occupied_s(prompt)
        self.ready[request] = self.free

    @property
    def load(self) -> int:
        """Requests here that have not ended."""
        return self.issued - self.ended

    def _taken(self) -> int:
        """Tokens in the pool."""
        return self.cached + self.parted - (self.cache.saved if self.cache else 0)

    def _prefill(self) -> bool:
        """One forward with prompt tokens, if the rules let any in: cut prompts first, then those that wait."""
        if self._holds():
            return False
        tables, rules, size, groups = self.tables, self.rules, self.size, self.tables.groups
        each = rules.budget - (-(-size // groups) if rules.mixes else 0)
        if each <= 0:
            return False
        free = tables.kv_tokens - self._taken() - (size if rules.mixes else 0)
        prompts = tokens = 0
        seen, done = 0.0, []
        for part in self.parts:
            request, before = part
            left = self.inputs[request] + self.made[request] - self.found[request] - before
            take = min(left, each, max(free, 0 if size else 1))
            if take < 1:
                continue
            prompts, tokens, free = prompts + 1, tokens + take, free - (left if rules.own else take)
            seen += take * (self.found[request] + before + 0.5 * (take + 1))
            part[1] += take
            self.parted += take
            if take == left:
                done.append(request)
        lead = len(self.parts)
        while self.waiting and size + lead < tables.limit:
            request = self.waiting[0]
            room = each * min(prompts + 1, groups) - tokens
            if room <= 0 or not self._fits(request, free, size + lead, room):
                break
            self._look_up(request)
            found, need = self.found[request], self._need(request)
            take = min(need, room, each) if rules.splits else need
            if take > room and tokens:  # an engine that cuts nothing takes a long prompt alone
                break
            self.waiting.popleft()
            prompts, tokens, lead = prompts + 1, tokens + take, lead + 1
            free -= (need if rules.own else take) + found
            self.promised += self.outputs[request] - self.made[request]
            seen += take * (found + 0.5 * (take + 1))
            self.parts.append([request, take])
            self.parted += take + found
            if take == need:
                done.append(request)
        if not tokens:
            return False
        self._forward(tokens, seen / tokens, prompts, done)
        return True

    def _holds(self) -> bool:
        """Whether prompts go on waiting for others, while some decode."""
        rules = self.rules
        if not (self.size and self.waited < rules.wait_steps):
            self.waited = 0
            return False
        tokens = self.size
        for request in islice(self.waiting, self.tables.limit - self.size):
            tokens += self._need(request)
            if tokens >= rules.wait_tokens:
                self.waited = 0
                return False
        self.waited += 1
        return True

    def _need(self, request: int) -> int:
        """Prompt tokens to compute, those of an answer thrown out included."""
        return self.inputs[request] + self.made[request] - self.found[request]

    def _look_up(self, request: int) -> None:
        if request in self.left:
            held, produced = self.left.pop(request)
            self.found[request] = min(max(0, held - (self.produced - produced)), held - 1)
        elif self.cache is not None and self.ids is not None and not self.made[request]:
            free = self.tables.kv_tokens - self._taken() - self.inputs[request]
            self.found[request] = self.cache.take(self.ids[request], self.inputs[request], free)
            self.hits += self.found[request]

    def _fits(self, request: int, free: float, before: int, room: int) -> bool:
        """Whether the pool has room for the next prompt by the engine's rule; an empty server takes it in any case."""
        if not before:
            return True
        rules, need = self.rules, self.inputs[request] + self.made[request]
        if rules.own:
            answer = min(self.outputs[request] - self.made[request], rules.own_most)
            return need + rules.own * answer + self.reserve * (self.unmade + self.promised) <= free
        if rules.splits:
            kept = self.left[request][0] if request in self.left else self.found[request]
            return min(need, kept + room) <= free
        return need + rules.watermark * self.tables.kv_tokens <= free

    def _forward(self, tokens: int, seen: float, prompts: int, done: list[int]) -> None:
        """Price it, let decoding go on inside it or after it, and start the requests whose prompt is complete."""
        tables, size = self.tables, self.size
        self.before, self.blind = self.now, 0
        if not size:
            self.now += tables.prompt_s(tokens, seen, prompts)
            at = self.now
        elif self.rules.mixes:
            step_s = tables.base[size] + tables.slope[size] * self.cached / size
            more = tables.mixed_s(tokens, seen, prompts, size, step_s)
            self.now += step_s + tables.interference * more
            at = self.now
            self._advance(1)
        else:
            seconds = tables.prompt_s(tokens, seen, prompts)
            at = self.now + seconds
            self.now += tables.interference * seconds
        if done:
            gone = set(done)
            self.parts = [part for part in self.parts if part[0] not in gone]
        for request in done:
            if not self.made[request]:
                self.first[request] = at
            self._start(request)

    def _start(self, request: int) -> None:
        """The prefill made a token; the rest are decode steps."""
        self.parted -= self.inputs[request] + self.made[request]
        self.promised -= self.outputs[request] - self.made[request]
        self.produced += 1
        left = self.outputs[request] - self.made[request] - 1
        self.began_step[request] = self.step
        if left <= 0:
            self._end(request)
            self.finish[request] = self.first[request] if self.outputs[request] == 1 else self.now
            return
        self.cached += self.inputs[request] + self.made[request] + 1
        self.size += 1
        self.unmade += left
        heappush(self.running, (self.step + left, request, self.turn[request]))
        self.youngest.append((request, self.turn[request]))

    def _end(self, request: int) -> None:
        self.finish[request] = self.now
        self.ended += 1
        if self.cache is not None and self.ids is not None:
            self.cache.give(self.ids[request])
        if self.issued < len(self.inputs):
            self.began[self.issued] = max(self.began[self.issued], self.now + self.front.way_s)
            self._receive(self.issued)
            self.issued += 1

    def _decode(self, until: float) -> None:
        """As many steps as pass until somebody finishes or may be admitted, or the pool is full."""
        tables, size = self.tables, self.size
        free = (tables.kv_tokens - self._taken()) // size
        if free < 1 and size > 1:
            self._preempt()
            return
        slope = tables.slope[size]
        first = tables.base[size] + slope * self.cached / size
        running, turn = self.running, self.turn
        while running[0][2] != turn[running[0][1]]:
            heappop(running)
        steps = min(running[0][0] - self.step, max(free, 1))
        if self.next < self.issued and not self.waiting and size < tables.limit:
            until = min(until, self.ready[self.next])
        if self.parts or self.waited:
            steps = 1
        elif until < FOREVER:
            far = max(1, int((until - self.now) / first) + 1)
            every = self.rules.every
            if every > 1:  # on to the next step at which it looks
                far += -(self.blind + far) % every
            steps = min(steps, far)
        self.now += steps * (first + 0.5 * slope * (steps - 1))
        self.before = self.now - first - slope * (steps - 1)
        self.blind += steps
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        self.step += steps
        made = steps * self.size
        self.cached += made
        self.unmade -= made
        self.produced += made
        if self.loss:
            self.reserve = max(self.least, self.reserve - self.loss * steps)
        running, turn, step = self.running, self.turn, self.step
        while running and running[0][0] <= step:
            _, request, when = heappop(running)
            if when != turn[request]:
                continue
            self.cached -= self._held(request)
            turn[request] += 1
            self.size -= 1
            self._end(request)

    def _held(self, request: int) -> int:
        """Tokens of one running request in the pool."""
        return self.inputs[request] + self.made[request] + 1 + self.step - self.began_step[request]

    def _preempt(self) -> None:
        """Throw out the youngest sequence; it will prefill again what it had made. A prompt half done is younger."""
        if self.parts:
            request, done = self.parts.pop()
            held = done + self.found[request]
            self.parted -= held
            self.promised -= self.outputs[request] - self.made[request]
            self._back(request, held)
            return
        while True:
            request, when = self.youngest.pop()
            if when == self.turn[request]:
                break
        made = 1 + self.step - self.began_step[request]
        held = self._held(request)
        self.cached -= held
        self.made[request] += made
        self.unmade -= self.outputs[request] - self.made[request]
        self.turn[request] += 1
        self.size -= 1
        if self.rules.raises:
            self.reserve = min(1.0, self.reserve + self.rules.raises)
        self._back(request, held)

    def _back(self, request: int, held: int) -> None:
        """To the head of the queue; a prefix cache has its tokens until others have written over them."""
        self.preempted += 1
        self.found[request] = 0
        if self.rules.keeps:
            self.left[request] = (held, self.produced)
        self.waiting.appendleft(request)
