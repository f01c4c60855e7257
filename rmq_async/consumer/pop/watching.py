"""Computes lag, statistics and health of a popping consumer: from what the consumer knows, without a request, in any thread."""

from __future__ import annotations

from ... import machine
from ..._text import printable
from ...client import brokers_of, loop_problem, name_server_problem
from ...health import Problem, ProblemCode
from ..watching import BLOCK_SHOWN, ConsumerHealth, ConsumerStats, Lag, hangs, oldest_age, stuck_problem
from .session import PopSession

__all__ = ["health_of", "lag_of", "stats_of"]


def lag_of(session: PopSession) -> Lag:
    """Returns the lag: the messages that this member holds, and those that brokers had left at their last answers, an estimate
    that may be seconds old."""
    sources = list(session.sources.values())
    held = sum(each.taken for each in session.credits.values()) + len(session.give_backs)
    age = oldest_age(session, session.core.clocks)
    by_queue = {each.held.shown: each.rest if each.has_answered else None for each in sources}
    return Lag(held + sum(each.rest for each in sources), 0, age, by_queue)


def stats_of(session: PopSession) -> ConsumerStats:
    credits = list(session.credits.values())
    return ConsumerStats(
        handled=session.settled.handled,
        failed=session.settled.failed,
        retried=session.outcomes.retried,
        dead_lettered=session.outcomes.dead_lettered,
        buffered=sum(each.taken for each in credits) + len(session.give_backs),
        buffered_bytes=sum(each.size for each in credits) + session.give_backs.size,
        running=session.dispatcher.running,
        commits=session.core.acks.count,
        unsure=session.outcomes.unsure + session.core.unsure,
    )


def health_of(session: PopSession) -> ConsumerHealth:
    """Returns the health of a running consumer."""
    instance, now = session.instance, machine.monotonic()
    blocked = loop_problem(instance)
    _, silence = name_server_problem(instance)
    _, troubles = brokers_of(instance)
    problems = [problem for problem in (blocked, silence, *troubles) if problem is not None]
    problems += _broker_problems(session)
    problems += _group_problems(session)
    running = list(session.calls.running)
    oldest = min(running, key=lambda delivery: delivery.began, default=None)
    if oldest is not None and oldest.age > session.config.stuck_after:
        problems.append(stuck_problem(oldest))
    block = session.blocked
    if block is not None and now - block.at < BLOCK_SHOWN:
        text = f"{block.name} blocked the event loop for {block.seconds:.1f} s, {now - block.at:.0f} s ago"
        problems.append(Problem(ProblemCode.HANDLER_BLOCKS, text))
    return ConsumerHealth(
        live=blocked is None and not any(hangs(delivery) for delivery in running),
        ready=blocked is None and session.was_assigned and not session.closing and session.calls.is_ready,
        problems=tuple(problems),
        last_progress_age=max(now - session.settled_at, 0.0),
        oldest_unfinished=oldest,
    )


def _broker_problems(session: PopSession) -> list[Problem]:
    """Returns the problems of pops and acknowledgements."""
    found: list[Problem] = []
    now = machine.monotonic()
    for source in list(session.sources.values()):
        found += [
            Problem(ProblemCode.QUEUE_UNREADABLE, text, broker=source.broker, queue=source.held.shown)
            for text in source.blocked(now)
        ]
        if (error := source.held.error) is not None:
            text = f"pops of topic {source.held.shown.topic} at broker {source.broker} fail: {printable(error, 300)}"
            found.append(Problem(ProblemCode.QUEUE_UNREADABLE, text, broker=source.broker, queue=source.held.shown))
    for broker, text in list(session.core.acks.errors.items()):
        found.append(
            Problem(ProblemCode.NOT_COMMITTED, f"messages were not acknowledged at broker {broker}: {text}", broker=broker)
        )
    return found + session.give_backs.problems()


def _group_problems(session: PopSession) -> list[Problem]:
    member = session.member
    found = [problem for problem in (session.calls.problem,) if problem is not None]
    found += [
        Problem(ProblemCode.GROUP_UNKNOWN, f"the name servers know no route of topic {topic}") for topic in member.unknown
    ]
    found += session.attached.closed.problems()
    found += [Problem(ProblemCode.SUBSCRIPTION_CONFLICT, str(conflict)) for conflict in member.conflicts.found]
    if (text := member.conflicts.namesakes.found) is not None:
        found.append(Problem(ProblemCode.DUPLICATE_CLIENT_ID, text))
    found += [Problem(ProblemCode.RESTARTED, text) for text in session.supervisor.recent()]
    return found
