"""Plans of faults print, parse and repeat."""

from __future__ import annotations

import errno
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.testing import CALLS, Fault, FaultPlan
from aiodq.testing.faults import Pages

ERRORS = st.sampled_from(sorted(errno.errorcode.values()))
MATCHES = st.one_of(st.just(""), st.text(st.characters(blacklist_characters=",:"), max_size=8).map(str.strip))


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    call = draw(st.sampled_from(CALLS))
    short = draw(st.none() | st.integers(0, 10_000)) if call == "write" else None
    error = draw(ERRORS) if short is None else draw(st.just("") | ERRORS)
    pages = draw(st.sampled_from(get_args(Pages) if call == "sync" else ("dropped",)))
    return Fault(call, draw(st.integers(1, 10**6)), error, draw(st.booleans()), short, pages, draw(MATCHES))


@given(st.lists(faults(), max_size=4))
def test_what_is_printed_is_what_is_parsed(wanted: list[Fault]) -> None:
    plan = FaultPlan(wanted)
    again = FaultPlan.parse(str(plan))
    assert str(again) == str(plan)
    assert [Fault.parse(str(fault)) for fault in wanted] == wanted


@given(st.lists(faults(), min_size=1, max_size=3), st.lists(st.sampled_from(CALLS), max_size=60))
def test_a_parsed_plan_hits_what_the_first_one_hit(wanted: list[Fault], calls: list[Any]) -> None:
    plans = [FaultPlan(wanted), FaultPlan.parse(str(FaultPlan(wanted)))]
    first, second = ([plan.enter(call, "/store/t/x.seg") for call in calls] for plan in plans)
    assert first == second


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 5))
def test_a_seed_always_gives_the_same_plan(seed: int, among: int, number: int) -> None:
    first, second = (FaultPlan.random(seed, among=among, faults=number) for _ in range(2))
    assert str(first) == str(second) == str(FaultPlan.parse(str(first)))
    assert str(first).count("@") == number


def test_seeds_reach_every_call_every_way_to_lose_pages_and_short_writes() -> None:
    plans = [str(FaultPlan.random(seed)) for seed in range(2000)]
    for wanted in (
        *(f"{call}@" for call in CALLS),
        "kept",
        "evicted",
        "short=",
        "lasting",
        "ENOSPC",
        "EMFILE",
        "EINTR",
    ):
        assert any(wanted in plan for plan in plans), wanted
    assert any("short" in plan and ":E" not in plan for plan in plans)
    assert {plan.split("@")[0] for plan in (str(FaultPlan.random(n, calls=("sync", "lock"))) for n in range(50))} == {
        "sync",
        "lock",
    }


def test_each_fault_counts_for_itself_and_the_first_of_two_is_told() -> None:
    plan = FaultPlan.parse("sync@2:EIO, sync@2:ENOSPC, sync@3:EDQUOT")
    found = [plan.enter("sync", "/f") for _ in range(4)]
    assert [fault and fault.error for fault in found] == [None, "EIO", "EDQUOT", None]
    plan.add(Fault("sync", 1, "EMFILE"))
    assert plan.enter("write", "/f") is None
    later = plan.enter("sync", "/f")
    assert later is not None
    assert later.error == "EMFILE"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "write",
        "write@",
        "write@0:EIO",
        "write@x:EIO",
        "write@1",
        "write@1:lasting",
        "write@1:EWHATEVER",
        "write@1:errorcode",
        "write@1:short=-1",
        "write@1:short=x",
        "write@1:lasting=yes",
        "chmod@1:EIO",
        "read@1:short=1",
        "read@1:EIO:evicted",
        "rename@1:EIO:short=1",
    ],
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Fault.parse(text)
    assert not isinstance(caught.value, KeyError)


@pytest.mark.parametrize("match", ["a:b", "a,b", " a", "a\n"])
def test_a_match_that_could_not_be_read_again_is_refused(match: str) -> None:
    with pytest.raises(ValueError, match="read again"):
        Fault("write", 1, match=match)
