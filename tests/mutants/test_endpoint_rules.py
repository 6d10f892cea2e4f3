# SPDX-License-Identifier: Apache-2.0
"""Every rule of the endpoint campaign has a mutant: four legs that keep all rules, with one fact changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pytest_laguna.analysis.endpoint import analyse_endpoint
from pytest_laguna.analysis.endpoint.analyse import CANDIDATE_RAN, NULL_RULES, RULES, TIMING_RULES
from pytest_laguna.evidence.arms.arm_record import token_digest
from pytest_laguna.evidence.endpoint.analysis import EndpointAnalysis
from pytest_laguna.evidence.endpoint.plan import EndpointPlan, Repetition
from pytest_laguna.evidence.endpoint.server_command import server_argv
from pytest_laguna.verdict import UnusableEvidenceError, Verdict
from tests import endpoint_legs as lab
from tests.caught_first import caught_first
from tests.endpoint_legs import METADATA_20260725

Legs = list[dict[str, Any]]
Change = Callable[[Legs], None]

A1, B1, B2, A2 = 0, 1, 2, 3
FLAG = lab.FLAG
REPETITION = Repetition(blocks=6, margin_percent=0.5, confidence=0.95, sign_flip_level=0.025, effect_percent=1.0)


def analyse(legs: Legs, plan: EndpointPlan | None = None) -> EndpointAnalysis:
    return analyse_endpoint(plan or lab.plan(), lab.records(legs), teacher=lab.TEACHER, campaign=lab.CAMPAIGN)


def put(leg: int, path: str, value: Any) -> Change:
    """Set one field of one leg; the path is joined by bars, numbers index lists."""

    def change(legs: Legs) -> None:
        *parents, last = path.split("|")
        target: Any = legs[leg]
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[int(last) if isinstance(target, list) else last] = value

    return change


def both(*changes: Change) -> Change:
    def change(legs: Legs) -> None:
        for one in changes:
            one(legs)

    return change


def token(leg: int, row: int, position: int) -> Change:
    def change(legs: Legs) -> None:
        changed = legs[leg]["rows"][row]
        changed["token_ids"][position] += 1
        changed["token_sha256"] = token_digest(changed["token_ids"])

    return change


def shorten(leg: int, row: int, tokens: int) -> Change:
    """An answer of fewer tokens, everywhere where it is told."""

    def change(legs: Legs) -> None:
        changed = legs[leg]["rows"][row]
        lost = len(changed["token_ids"]) - tokens
        for name in ("token_ids", "arrival_ns", "event_tokens"):
            changed[name] = changed[name][:tokens]
        changed["token_sha256"] = token_digest(changed["token_ids"])
        changed["usage"]["completion_tokens"] = legs[leg]["final_gate"]["completion_tokens"][row] = tokens
        changed["finish_reason"] = "stop"
        legs[leg]["counters_after"]["generated_tokens"] -= lost

    return change


def drop(place: int) -> Change:
    return lambda legs: legs.__delitem__(place)


def keep(count: int) -> Change:
    return lambda legs: legs.__delitem__(slice(count, None))


def swap(legs: Legs) -> None:
    """B2 takes A2's place: then A1 and B1 are not followed by the second candidate."""
    legs[B2], legs[A2] = legs[A2], legs[B2]


def fifth(legs: Legs) -> None:
    start = lab.metadata_starts()["B1"]
    legs.append(lab.leg("B1", 1, 5, start, candidate=True))


def other_prompt(legs: Legs) -> None:
    legs[B1]["rows"][3]["prompt_token_sha256"] = "0" * 64


def retold(leg: int, **changed: Any) -> Change:
    """The leg again, from a start with other figures."""

    def change(legs: Legs) -> None:
        name = legs[leg]["request"]["leg"]
        start = dataclasses.replace(lab.metadata_starts()[name], **changed)
        legs[leg] = lab.leg(name, 1, leg + 1, start, candidate=name.startswith("B"))

    return change


def rates(leg: int, change_row: Callable[[int, float], float]) -> Change:
    def change(legs: Legs) -> None:
        name = legs[leg]["request"]["leg"]
        seen = [change_row(row, rate) for row, rate in enumerate(lab.metadata_starts()[name].rates)]
        retold(leg, rates=seen)(legs)

    return change


def scale(**factors: float) -> Change:
    """All four legs again, some of them faster."""
    return lambda legs: legs.__setitem__(slice(None), lab.legs(lab.scaled(lab.metadata_starts(), **factors)))


def told(name: str, value: Any) -> Change:
    """All servers were told something else, and called with it."""

    def change(legs: Legs) -> None:
        for leg in legs:
            arguments = leg["request"]["engine_arguments"] | {name: value}
            leg["request"]["engine_arguments"] = arguments
            leg["server"]["argv"] = server_argv("/python", arguments, leg["server"]["models"], 8000)

    return change


def port(leg: int, address: str) -> Change:
    return both(put(leg, "server|listener_before|address", address), put(leg, "server|listener_after|address", address))


def drop_draft(leg: int, moment: str, rank: int) -> Change:
    return lambda legs: legs[leg][moment][rank]["graphs"].pop()


def no_draft(legs: Legs) -> None:
    for leg in legs:
        for state in leg["ranks_captured"] + leg["ranks_served"]:
            state["graphs"].pop()


preempted = both(put(0, "counters_before|preemptions", 2), put(0, "counters_after|preemptions", 2))


def as_captured(leg: int, rank: int) -> Change:
    """After the suite the candidate's counters stand where they stood before it."""

    def change(legs: Legs) -> None:
        legs[leg]["ranks_served"][rank]["candidate"] = legs[leg]["ranks_captured"][rank]["candidate"]

    return change


def hits(leg: int, **counters: int) -> Change:
    """Counters of rank 0's one layer after the suite, and of all its layers together."""

    def change(legs: Legs) -> None:
        proof = legs[leg]["ranks_served"][0]["candidate"]
        proof.update(counters)
        proof["layers"][lab.LAYER] = proof["layers"][lab.LAYER] | counters

    return change


def with_state(leg: int, layers: int) -> Change:
    return put(leg, "ranks_served|0|candidate|target_layers_with_state", layers)


def decoded(leg: int, seconds: float) -> Change:
    return put(leg, "counters_after|decode_seconds", seconds)


def late(leg: int) -> Change:
    """Each first token comes ten seconds later, as after a long prompt."""

    def change(legs: Legs) -> None:
        for place, row in enumerate(legs[leg]["rows"]):
            row["sent_ns"] += place * 10**10
            row["arrival_ns"] = [moment + 10**10 for moment in row["arrival_ns"]]
            row["done_ns"] += 10**10

    return change


METADATA = lab.metadata_starts()
V, F, S, N = Verdict.VOID, Verdict.FAIL, Verdict.STOP, Verdict.NOT_PROVEN

MUTANTS: list[tuple[str, str, Change, Verdict, str]] = [
    ("leg-named", "arm", put(B1, "request|arm", "graph-control"), V, "graph-control and '1'; expected graph-candidate"),
    ("leg-named", "selector", put(A1, f"request|variables|{FLAG}", "1"), V, "graph-control and '1'; expected graph-c"),
    ("suite-passed", "other file", put(A1, "request|suite|sha256", "0" * 64), V, "expected suite_id="),
    ("suite-passed", "six prompts", put(A2, "request|suite|prompts", 6), V, "prompts=6"),
    ("suite-passed", "order", put(B2, "rows|4|index", 5), V, "[0, 1, 2, 3, 5, 5,"),
    ("server-ours", "other model", put(B1, "server|models|0", "other"), V, "the server: seen ['other',"),
    (
        "server-ours",
        "no nonce",
        put(B1, "server|models", ["laguna"]),
        V,
        "the server: seen ['laguna']; expected ['",
    ),
    ("server-ours", "port moved", put(B1, "server|listener_after|inode", 1), V, "socket: seen 902 at 127.0.0.1:8000 "),
    ("server-ours", "other answer", put(A1, "rows|7|model", "other"), V, "row 7: seen an answer by 'other'"),
    (
        "server-ours",
        "other holder",
        put(B1, "server|listener_before|holders", [1]),
        V,
        "seen holders [1]; expected server",
    ),
    (
        "server-ours",
        "later",
        put(B1, "server|listener_after|holders", [1]),
        V,
        "seen holders [1]; expected ",
    ),
    ("server-called", "other program", put(B1, "server|argv", ["x"]), V, "seen None; expected the request's '-P'"),
    (
        "server-called",
        "other option",
        put(B1, "server|argv|10", "--x"),
        V,
        " '--x'; expected ",
    ),
    (
        "server-called",
        "one more",
        lambda legs: legs[B1]["server"]["argv"].append("--x"),
        V,
        "'--x'; expected the request's None",
    ),
    ("server-called", "port", port(B1, "127.0.0.1:8001"), V, " '--port=8000'; expected the request's '--port=8001'"),
    ("server-called", "host", port(B1, "0.0.0.0:8000"), V, " 0.0.0.0:8000; expected a port of 127.0.0.1"),
    (
        "selector-observed",
        "unset",
        put(B1, f"ranks_served|2|variables|{FLAG}", "2"),
        V,
        f"rank 2 (served): {FLAG}: seen '2'",
    ),
    ("selector-observed", "other", put(B1, "ranks_captured|0|variables|OMP_NUM_THREADS", "9"), V, "rank 0 (captured)"),
    (
        "candidate-active",
        "no reader",
        put(B1, "ranks_captured|3|candidate|layers", {}),
        F,
        "rank 3 (captured): seen flag",
    ),
    ("candidate-active", "stock", put(B2, "ranks_served|0|candidate|implementations", ["x"]), F, "Backend', 'x']"),
    (
        "candidate-active",
        "in control",
        put(A1, "ranks_served|1|candidate|flag", True),
        F,
        "rank 1 (served): seen flag, ",
    ),
    ("candidate-active", "other control", put(A1, "ranks_served|1|candidate|implementations", ["x"]), F, "'x'], None"),
    ("candidate-active", "validator", put(B1, "ranks_served|0|candidate|validator", "python"), F, "'xpu', 'python', 1"),
    ("candidate-active", "lane", put(B1, "ranks_served|0|candidate|lane", "cpu"), F, "'cpu', 'native', 1, 1, 1)"),
    (
        "candidate-active",
        "one of two layers",
        put(B1, "ranks_served|2|candidate|target_layers", [lab.LAYER, "model.layers.1.self_attn.attn"]),
        F,
        "'native', 2, 1, 1); expected",
    ),
    ("candidate-active", "no state", with_state(B1, 0), F, "1, 1, 0); expected"),
    ("candidate-active", "state in control", with_state(A1, 1), F, "1, 0, 1); expected"),
    (
        "candidate-active",
        "other layer",
        put(B1, "ranks_served|2|candidate|target_layers", ["model.layers.1.self_attn.attn"]),
        F,
        "rank 2 (served)",
    ),
    (
        "views-built-once",
        "discarded",
        put(B1, f"ranks_served|1|candidate|layers|{lab.LAYER}|invalidations", 500),
        F,
        " 1 (served): model.layers.0.self_attn.attn: seen 1 builds and 500 invalidations; expected 1 and ",
    ),
    (
        "views-built-once",
        "rebuilt",
        put(B2, f"ranks_captured|1|candidate|layers|{lab.LAYER}|builds", 2),
        F,
        "rank 1 (captured): model.layers.0.self_attn.attn: seen 2 ",
    ),
    ("views-built-once", "draft", put(B1, "ranks_served|0|candidate|draft_layers_with_state", 1), F, "1 draft layers"),
    (
        "views-built-once",
        "total",
        put(B1, "ranks_served|0|candidate|forward_hits", 0),
        V,
        "forward_hits: seen 0; expected",
    ),
    (
        "views-used",
        "never",
        as_captured(B1, 2),
        F,
        "rank 2 (served): model.layers.0.self_attn.attn: seen views used 0 ",
    ),
    ("views-used", "too seldom", hits(B1, forward_hits=1717), F, "views used 1717 times forward and 13 times in"),
    ("views-used", "no update", hits(B1, update_hits=2), F, "and 0 times in updates during the suite; expected 1718"),
    (
        "captures-proven",
        "lost",
        put(A1, "ranks_captured|1|graphs", []),
        F,
        "rank 1 (captured): seen graphs and breaks []",
    ),
    ("captures-proven", "fewer", put(B1, "ranks_served|0|graphs|0|graphs", 145), F, "[(145, 145)]; expected [(146"),
    (
        "captures-proven",
        "order",
        put(B1, "ranks_served|0|graphs|0|order_sha256", "0" * 64),
        F,
        "segment orders: seen ['",
    ),
    ("captures-proven", "rank", put(A2, "ranks_captured|3|rank", 2), N, "ranks [0, 1, 2, 2]"),
    (
        "captures-proven",
        "moment",
        put(A2, "ranks_captured|0|moment", "served"),
        N,
        "captured: seen rank 0 (served); expected each rank's",
    ),
    ("captures-proven", "told", told("tensor_parallel_size", 1), V, " 1; expected 4"),
    (
        "draft-captured",
        "lost",
        drop_draft(B1, "ranks_served", 2),
        F,
        "rank 2 (served): seen no graph of the draft",
    ),
    ("draft-captured", "never", no_draft, F, "rank 0 (captured): seen no graph of the draft"),
    (
        "draft-captured",
        "other",
        put(A1, "ranks_captured|1|graphs|1|graphs", 2),
        F,
        "rank 1 (captured): seen other graphs of ",
    ),
    ("one-at-a-time", "overlap", put(B1, "rows|3|sent_ns", 0), V, "row 3: seen before row 2 had ended"),
    (
        "rows-complete",
        "usage",
        put(B1, "rows|2|usage|completion_tokens", 511),
        V,
        "row 2: seen 512 tokens; expected the",
    ),
    ("rows-complete", "short", shorten(B1, 10, 99), V, "row 10: seen 99 tokens; expected 100 that take some time"),
    ("rows-complete", "length", put(A1, "rows|10|finish_reason", "length"), V, " by 'length' after 296 tokens"),
    ("rows-complete", "error", put(A1, "rows|10|finish_reason", "abort"), V, " by 'abort' after 296 tokens"),
    ("rows-complete", "streams", put(A1, "final_gate|rows", 12), V, "the kept streams: seen rows and tokens (12,"),
    (
        "fresh-unique",
        "request",
        put(A1, "freshness|request_ids|1", "leg-1-row-0"),
        V,
        "request ids: seen others in the freshness block; expected those of the rows",
    ),
    (
        "fresh-unique",
        "twice",
        both(put(A1, "freshness|request_ids|1", "leg-1-row-0"), put(A1, "rows|1|request_id", "leg-1-row-0")),
        V,
        "12 different of 13",
    ),
    (
        "cached-zero",
        "row",
        put(B1, "rows|5|usage|cached_tokens", 64),
        V,
        "cached tokens of the rows: seen [0, 0, 0, 0, 0, ",
    ),
    ("cached-zero", "freshness", put(B1, "freshness|cached_tokens|5", 64), V, "cached tokens of the freshness"),
    ("cached-zero", "final gate", put(B1, "final_gate|cached_tokens", [0] * 12), V, "cached tokens of the final gate"),
    (
        "counters-present",
        "drafts",
        put(B1, "counters_after|drafts", None),
        N,
        "after the suite: seen no ",
    ),
    (
        "counters-present",
        "seconds",
        put(B1, "counters_after|decode_seconds", None),
        N,
        "after the suite: seen no decode_seconds",
    ),
    ("counters-present", "finished", put(A1, "counters_before|finished", {}), N, "before the suite"),
    (
        "counters-start-zero",
        "warm",
        put(B1, "counters_before|decode_count", 1),
        V,
        "decode_count before the suite",
    ),
    (
        "counters-start-zero",
        "finished",
        put(B1, "counters_before|finished|stop", 1),
        V,
        "finished stop before the suite: seen 1",
    ),
    (
        "counters-start-zero",
        "position",
        put(B1, "counters_before|accepted_per_position|3", 2),
        V,
        "accepted_per_position 3 before the suite: seen 2",
    ),
    (
        "counters-start-zero",
        "seconds",
        put(B1, "counters_before|decode_seconds", 0.5),
        V,
        "decode_seconds before the suite: seen 0.5",
    ),
    ("counters-rise", "falls", put(A1, "counters_after|preemptions", -1), V, "preemptions: seen a change by -1"),
    (
        "counters-rise",
        "seconds",
        put(A1, "counters_after|decode_seconds", -1.0),
        V,
        "decode_seconds: seen a change by -1.0",
    ),
    (
        "positions-contiguous",
        "gap",
        put(B2, "counters_after|accepted_per_position", {"0": 4642, "2": 0}),
        V,
        "after; expected ['0', '1'] twice",
    ),
    (
        "decode-count",
        "hidden request",
        put(A2, "counters_after|decode_count", 14),
        V,
        " requests: seen 14; expected ",
    ),
    ("counters-add-up", "positions", put(A2, "counters_after|accepted", 4640), V, "accepted over positions: seen 4641"),
    (
        "counters-add-up",
        "finished",
        put(A2, "counters_after|finished|abort", 1),
        V,
        "finished requests: seen 14; expected 13",
    ),
    (
        "counters-add-up",
        "prompt",
        put(A2, "counters_after|prompt_tokens", 2000),
        V,
        "prompt tokens: seen 2000; expected 2364",
    ),
    (
        "counters-add-up",
        "generated",
        put(A2, "counters_after|generated_tokens", 1),
        V,
        "generated tokens: seen 1; expected ",
    ),
    ("acceptance-possible", "no draft", put(B1, "counters_after|drafts", 0), V, "0 drafts, 12026 proposed"),
    ("acceptance-possible", "more", put(B1, "counters_after|draft_tokens", 4000), V, "4000 proposed and 4644 accepted"),
    (
        "acceptance-possible",
        "rising",
        put(B1, "counters_after|accepted_per_position|6", 700),
        V,
        "position 6: seen 700 acceptances; expected at most 663",
    ),
    (
        "proposals-whole",
        "a token more",
        put(B1, "counters_after|draft_tokens", 12027),
        V,
        "12027 tokens, at 7 positions",
    ),
    (
        "proposals-whole",
        "untold",
        put(B1, "request|engine_arguments|speculative_config|num_speculative_tokens", None),
        N,
        "seen no number of drafted tokens",
    ),
    ("cycles-account", "few", retold(B1, accepted=4600), V, "accepted tokens: seen 6318; expected 6341 to 6432"),
    ("cycles-account", "many", retold(B1, accepted=4800), V, "accepted tokens: seen 6518; expected 6341 to 6432"),
    ("decode-time-possible", "short", decoded(B1, 74.3), V, " 74.3 s; expected 74.3233 to 85.9037 s"),
    ("decode-time-possible", "longer than asked", decoded(B1, 86.0), V, " 86 s; expected"),
    ("decode-time-possible", "long", both(late(B1), decoded(B1, 92.3)), V, "expected 74.3233 to 92.2841 s"),
    (
        "decode-time-possible",
        "just not",
        both(late(B1), decoded(B1, 92.2840699)),
        V,
        "92.2841 s; expected 74.3233 to 92.28407 s",
    ),
    (
        "prefix-cache-cold",
        "hit",
        put(B1, "counters_after|prefix_cache_hits", 64),
        V,
        "after the suite: seen {'",
    ),
    ("prefix-cache-cold", "tier", put(B1, "counters_after|external_cache_hits", 64), V, "{'external_cache_hits': 64}"),
    (
        "prefix-cache-cold",
        "unknown",
        put(B1, "counters_after|prefix_cache_hits", None),
        N,
        "prefix_cache_hits: seen no counter",
    ),
    ("no-preemption", "three", put(B1, "counters_after|preemptions", 3), V, "3; expected none"),
    ("no-preemption", "before", preempted, V, "2; expected none"),
    ("no-preemption", "unknown", put(B1, "counters_after|preemptions", None), N, "preemptions: seen no counter"),
    ("no-retry", "begun twice", put(B1, "posted", 14), V, "14 for 13 rows; expected one each"),
    ("no-retry", "absent", put(A1, "facts|no_retry", None), N, "seen no observation"),
    ("no-retry", "twice", put(A1, "rows|5|response_id", "chatcmpl-1-4"), V, "response ids: seen 12 in 13 rows"),
    ("no-warm-up", "absent", put(A1, "facts|no_warm_up", None), N, "seen no observation"),
    ("no-warm-up", "generated", put(A1, "counters_before|generated_tokens", 1), V, "1 generated "),
    ("fresh-service", "absent", put(B2, "facts|fresh_service", None), N, "seen no observation"),
    ("fresh-service", "older", put(B1, "server|start_ticks", 1), V, " at 4002, the server at 1 and"),
    ("fresh-service", "older rank", put(B1, "ranks_captured|1|start_ticks", 5), V, "and its ranks at [5, 6020"),
    ("fresh-service", "restarted", put(B2, "ranks_served|3|pid", 4), V, "expected the same"),
    ("no-network", "absent", put(A1, "facts|no_network", None), N, "seen no observation"),
    (
        "no-network",
        "abroad",
        put(A1, "sockets|4|foreign", ["tcp 10.0.0.2:1 -> 10.0.0.9:443"]),
        V,
        "10.0.0.9:443; expected none",
    ),
    (
        "no-network",
        "blind",
        put(A1, "sockets|4|local", []),
        N,
        "seen no socket of the server itself; expected tcp 127",
    ),
    (
        "no-network",
        "unseen",
        put(A1, "sockets|13|moment", "ready"),
        N,
        "no snapshot of the sockets; expected one after ",
    ),
    ("no-history", "absent", put(A1, "facts|no_history", None), N, "seen no observation"),
    (
        "no-history",
        "broken",
        put(A1, "facts|no_history", {"holds": False, "observation": "row 2 sends 3 messages"}),
        V,
        " row 2 sends 3 messages",
    ),
    ("no-ngram", "absent", put(A1, "facts|no_ngram", None), N, "seen no observation"),
    ("no-ngram", "ngram", told("speculative_config", {"method": "ngram"}), V, "speculative method: seen 'ngram'; "),
    ("no-ngram", "no method", told("speculative_config", {}), V, "speculative method: seen None; expected one with"),
    ("no-ngram", "no layer", put(B1, "ranks_served|3|candidate|draft_layers", []), V, "rank 3: seen no layer of a "),
    ("no-response-reuse", "absent", put(A1, "facts|no_response_reuse", None), N, "seen no observation"),
    ("no-prefix-reuse", "absent", put(A1, "facts|no_prefix_reuse", None), N, "seen no observation"),
    (
        "no-prefix-reuse",
        "told",
        told("enable_prefix_caching", True),
        V,
        " True; expected ",
    ),
    ("cleanup-clean", "worker", put(B2, "end|cleanup|worker_status", 1), F, "expected no process left and idle cards"),
    (
        "cleanup-clean",
        "unwatched",
        both(
            put(B2, "end|cleanup|worker_status", 1),
            put(B2, "end|process|reason", "supervisor-lost"),
            put(B2, "end|process|proven_empty", False),
        ),
        N,
        " no process is left",
    ),
    ("cleanup-clean", "idle", put(B2, "end|cleanup|idle_status", 1), F, "expected no process left and idle cards"),
    ("cleanup-clean", "stop", put(B2, "end|cleanup|stop_status", 1), V, "no reason; expected zeros"),
    ("cleanup-clean", "reason", put(B2, "end|reason", "row 3 broke off"), V, "row 3 broke off; expected zeros"),
    (
        "server-ended",
        "no record",
        put(B2, "end|process", None),
        N,
        "the server's end: seen no record; expected",
    ),
    (
        "server-ended",
        "not empty",
        put(B2, "end|process|proven_empty", False),
        N,
        "proven-empty: not proven that all",
    ),
    (
        "server-ended",
        "killed",
        put(B2, "end|process|wait_status", 9),
        V,
        "SIGKILL after 200.0 s; expected ",
    ),
    (
        "server-ended",
        "by itself",
        put(B2, "end|process|reason", "exited"),
        V,
        "the server: seen exited, exit code 0 after",
    ),
    (
        "server-ended",
        "outlived",
        put(B2, "end|process|last_signal", 9),
        F,
        " it that had to be killed; expected",
    ),
    (
        "server-ended",
        "left behind",
        put(B2, "end|process|leftovers", [{"pid": 7, "command": "x", "start_ticks": 1}]),
        F,
        "nothing-left: left behind: pid 7",
    ),
    ("cleanup-clean", "unseen", put(B2, "end|cleanup|idle_status", None), N, "seen no check of idle cards"),
    ("teacher-exact", "token", token(B2, 4, 300), F, "12 of 13 rows are exact; row 4: seen token"),
    ("teacher-exact", "length", shorten(B2, 4, 500), F, "row 4: seen 500 tokens; expected 512"),
    (
        "teacher-exact",
        "prompt",
        put(B2, "rows|4|prompt_sha256", "0" * 64),
        F,
        "row 4: seen number 4, prompt '",
    ),
    ("long-next", "short", shorten(B2, 0, 400), F, "row 0: seen 400 tokens; expected 512"),
    ("long-next", "next", token(B2, 1, 0), F, "row 1: seen token"),
    ("rollover", "none", put(B1, "rows|12|usage|prompt_tokens", 862), V, "prompts of 863 tokens or more"),
    ("rollover", "two", put(B1, "rows|3|usage|prompt_tokens", 900), V, "rows [3, 12]"),
    ("rollover", "token", token(B1, 12, 511), F, "row 12: seen token"),
    ("figures-taken", "no draft", put(B2, "counters_after|draft_tokens", None), N, "figures: seen none; expected"),
    ("legs-as-planned", "swapped", swap, F, "leg 3: seen block 1 A2, number 4; expected block 1 B2"),
    ("legs-as-planned", "fifth", fifth, F, "block 1 B1: seen as leg 5 with a record; expected no more than"),
    (
        "legs-as-planned",
        "repeated",
        put(B2, "request|leg", "B1"),
        F,
        "leg 3: seen block 1 B1, number 3; expected block 1",
    ),
    (
        "legs-in-order",
        "overlap",
        put(B1, "started", "2026-07-01T01:29:59.000000+00:00"),
        V,
        "B1: seen its start 2026-07-01T01:29:59",
    ),
    (
        "legs-in-order",
        "backwards",
        put(B1, "ended", "2026-07-01T02:00:00.000000+00:00"),
        V,
        "expected the end later",
    ),
    ("servers-fresh", "nonce", put(B1, "server|nonce", f"{1:032x}"), V, "block 1 A1 and block 1 B1: seen the nonce"),
    (
        "servers-fresh",
        "process",
        both(put(B1, "server|pid", 1001), put(B1, "server|start_ticks", 5001)),
        V,
        " the server process",
    ),
    (
        "servers-fresh",
        "request",
        put(A2, "rows|0|request_id", "leg-1-row-0"),
        V,
        " a request id in both; expected fresh",
    ),
    (
        "sole-treatment",
        "argument",
        put(B1, "request|engine_arguments|max_model_len", 1),
        V,
        "argument max_model_len: seen 1; expected 8192",
    ),
    (
        "sole-treatment",
        "variable",
        put(B1, "request|variables|OMP_NUM_THREADS", "2"),
        V,
        "block 1 B1: variable OMP_NUM_THREADS: seen 2; expected 1",
    ),
    ("sole-treatment", "interpreter", put(B1, "server|argv|0", "/other"), V, "B1: interpreter: seen /other; expected "),
    ("sole-treatment", "version", put(A2, "ranks_captured|0|versions|vllm", "0.33.0"), V, "block 1 A2: rank 0's vers"),
    ("cross-leg-exact", "token", token(A2, 9, 5), F, "block 1 A2 against block 1 A1: row 9: seen token"),
    ("same-prompts", "fewer", lambda legs: legs[B1]["rows"].pop(), V, "13 against 12; expected the same number"),
    ("same-prompts", "tokens", other_prompt, V, "row 3: seen prompts 'concurrency-review' and 'concurrency-review'"),
    ("acceptance-drift", "up", retold(B1, accepted=4700), S, "acceptance rate"),
    ("acceptance-drift", "down", retold(B1, accepted=4600), S, "acceptance rate"),
    (
        "headline",
        "too small",
        rates(B1, lambda row, rate: 92.78 if row == 6 else rate),
        S,
        "median throughput: seen a gain of 0.248",
    ),
    (
        "rows-won",
        "nine",
        rates(B1, lambda row, rate: METADATA["A1"].rates[row] if row < 4 else rate),
        S,
        "9 of 13; expected at least 10",
    ),
    (
        "paired-median",
        "small",
        rates(B1, lambda row, rate: METADATA["A1"].rates[row] * 1.001 if row != 6 else rate),
        S,
        "expected at least 0.25 %",
    ),
    (
        "cycle-saving",
        "small",
        retold(B1, cycle_ms=49.3),
        S,
        "target cycle: seen a saving of 0.1 ms; expected at least 0.15 ms",
    ),
    (
        "control-health",
        "slow",
        scale(A1=0.9, A2=0.9, B1=0.95, B2=0.95),
        S,
        "% off the record 92.16352215694299; expected",
    ),
    ("control-health", "fast", scale(A1=1.02, B1=1.02), S, "expected at most 2.0 %"),
    ("phase-1-stop", "went on", retold(B1, cycle_ms=59.9), F, "block 1 B2: seen after a failed phase 1"),
    ("a2-after-b2", "gone", keep(3), N, "block 1 A2: seen no record, though one of B2"),
    ("legs-complete", "two", keep(2), N, "block 1 B2: seen no record; expected all of 4 legs"),
    ("legs-complete", "none", keep(0), N, "block 1 A1: seen no record"),
]
"""Mutants of four legs under the metadata crossover's plan; those of the plan and of several blocks are below."""


def thresholds(**changed: Any) -> EndpointPlan:
    return lab.plan(thresholds=METADATA_20260725.model_copy(update=changed))


def repeated(*, null: bool = False, **changed: Any) -> EndpointPlan:
    return lab.plan(null=null, repetition=REPETITION.model_copy(update=changed))


def six(starts: dict[str, lab.Start], noise: float, *, null: bool = False) -> Legs:
    """Six blocks whose second starts are faster and slower in turn, by a share of the rate."""
    signs = (1, -1, 1, -1, 1, -1)
    return lab.blocks([lab.scaled(starts, A2=1 + sign * noise, B2=1 - sign * noise) for sign in signs], null=null)


FLOOR_95 = METADATA_20260725.model_copy(update={"practical_floor": 95.0})
RECORD_95 = METADATA_20260725.model_copy(
    update={"record": 95.0, "practical_floor": None, "control_health_percent": None}
)

PLAN_TOLD_FIRST = {"lower-start-wins-slower": "headline"}
"""A start that is slower than the control's has lost to its own pair before."""

PLAN_MUTANTS: list[tuple[str, str, Callable[[], tuple[EndpointPlan, Legs]], Verdict, str]] = [
    (
        "teacher-pinned",
        "other teacher",
        lambda: (lab.plan(teacher_sha256="0" * 64), lab.legs(METADATA)),
        V,
        f"teacher: seen digest {lab.TEACHER.digest}; expected 0000",
    ),
    (
        "lower-start-wins",
        "slower",
        lambda: (lab.plan(), lab.legs(lab.scaled(METADATA, B2=0.9))),
        S,
        "expected more than the control's 92.549",
    ),
    (
        "above-record",
        "below",
        lambda: (thresholds(record=94.9201, practical_floor=None, control_health_percent=None), lab.legs(METADATA)),
        S,
        "strictly more than 94.9201",
    ),
    (
        "above-practical-floor",
        "below",
        lambda: (thresholds(practical_floor=95.0), lab.legs(METADATA)),
        S,
        "lower candidate start: seen 94.92; expected strictly more than 95.0",
    ),
    (
        "interval-superior",
        "margin",
        lambda: (repeated(margin_percent=3.0), six(METADATA, 0.001)),
        S,
        "inconclusive: ",
    ),
    (
        "interval-superior",
        "unreachable",
        lambda: (repeated(sign_flip_level=0.015), six(METADATA, 0.001)),
        S,
        "inconclusive: the sample could never reach the frozen level",
    ),
    (
        "null-finds-nothing",
        "promoted",
        lambda: (lab.plan(null=True), lab.legs(METADATA, null=True)),
        F,
        "control against control: seen record_candidate; expected no finding of the published rules",
    ),
    (
        "null-finds-nothing",
        "ahead below the floor",
        lambda: (lab.plan(null=True, thresholds=FLOOR_95), lab.legs(METADATA, null=True)),
        F,
        "control against control: seen exact_reproducible_candidate_below_practical_floor",
    ),
    (
        "null-finds-nothing",
        "ahead below the record",
        lambda: (lab.plan(null=True, thresholds=RECORD_95), lab.legs(METADATA, null=True)),
        F,
        "control against control: seen exact_reproducible_candidate_below_record_floor",
    ),
    (
        "candidate-ran",
        "null",
        lambda: (lab.plan(null=True), lab.legs(lab.null_starts(), null=True)),
        N,
        "A/A campaign: seen a control in every leg; expected the candidate in the B legs",
    ),
    (
        "null-finds-nothing",
        "superior",
        lambda: (repeated(null=True), six(METADATA, 0.001, null=True)),
        F,
        "control against control: seen record_candidate",
    ),
    (
        "null-finds-nothing",
        "inferior",
        lambda: (repeated(null=True), six(lab.scaled(lab.null_starts(), B1=0.98, B2=0.98), 0.001, null=True)),
        F,
        " control: seen inferior; expected an inconclusive interval",
    ),
    (
        "null-narrow",
        "wide",
        lambda: (repeated(null=True), six(lab.null_starts(), 0.01, null=True)),
        S,
        "% to each side; expected less than 0.5 %",
    ),
]


@caught_first("rule name made verdict reason", PLAN_MUTANTS, PLAN_TOLD_FIRST)
def test_the_mutant_of_the_plan_is_caught_by_its_rule(
    rule: str, made: Callable[[], tuple[EndpointPlan, Legs]], verdict: Verdict, reason: str
) -> list[str]:
    plan, legs = made()
    analysis = analyse(legs, plan)
    against = [finding for finding in analysis.findings if finding.rule == rule]
    assert (against[0].verdict, against[0].decides) == (verdict, True)
    assert reason in against[0].reason
    assert (analysis.null_verdict if rule in NULL_RULES else analysis.verdict) is verdict
    assert analysis.promotion is not None
    assert not analysis.promotion.promoted
    elsewhere = {CANDIDATE_RAN} if rule in NULL_RULES else set()  # of the null verdict it is no part
    asked = (finding for finding in analysis.findings if finding.decides and finding.rule not in elsewhere)
    return [finding.rule for finding in asked if finding.verdict is not Verdict.PASS]


@pytest.mark.parametrize(("null", "starts"), [(False, METADATA), (True, lab.null_starts())], ids=["treatment", "null"])
def test_six_blocks_keep_every_rule(null: bool, starts: dict[str, lab.Start]) -> None:
    analysis = analyse(six(starts, 0.001, null=null), repeated(null=null))
    against = {finding.rule for finding in analysis.findings if finding.verdict is not Verdict.PASS}
    assert (analysis.verdict, analysis.null_verdict) == ((N, Verdict.PASS) if null else (Verdict.PASS, None))
    assert against == (set() if not null else PAIRS | PROMOTING | {"candidate-ran"}), analysis.reason
    assert analysis.label == ("null campaign, 6 blocks" if null else "6 blocks")
    assert analysis.promotion is not None
    assert analysis.promotion.promoted is not null


PAIRS = {"headline", "rows-won", "paired-median", "cycle-saving"}
PROMOTING = {"lower-start-wins", "interval-superior"}
"""Rules that fail in a passing A/A campaign."""


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, *_ in MUTANTS} | {rule for rule, *_ in PLAN_MUTANTS} == RULES


def test_a_short_teacher_is_refused() -> None:
    short = lab.TEACHER.model_copy(update={"rows": lab.TEACHER.rows[:12]})
    legs = lab.records(lab.legs(METADATA))
    analysis = analyse_endpoint(lab.plan(teacher_sha256=short.digest), legs, teacher=short, campaign=lab.CAMPAIGN)
    assert analysis.reason == "campaign: teacher-pinned: teacher: seen 12 rows; expected 13"


@pytest.mark.parametrize("rule", sorted(TIMING_RULES))
def test_a_rule_about_timing_never_decides_on_exactness_alone(rule: str) -> None:
    """The same mutants: the finding stays, told and not deciding, and the legs pass."""
    changes = {one: change for one, _, change, *_ in MUTANTS}
    made = {one: make for one, _, make, *_ in PLAN_MUTANTS}
    if rule in changes:
        plan, legs = lab.plan(), lab.legs(METADATA)
        changes[rule](legs)
    else:
        plan, legs = made[rule]()
    analysis = analyse(legs, plan.model_copy(update={"decides": "exactness"}))
    against = [finding for finding in analysis.findings if finding.verdict is not Verdict.PASS]
    assert rule in {finding.rule for finding in against}
    assert not any(finding.decides for finding in against)
    assert (analysis.verdict, analysis.published_verdict) == (Verdict.PASS, Verdict.STOP)
    assert analysis.phase_1 is not None
    assert not analysis.phase_1.stops
    assert analysis.promotion is not None
    assert not analysis.promotion.promoted


def test_a_null_campaign_on_exactness_alone_only_tells_what_it_finds() -> None:
    plan = lab.plan(null=True, decides="exactness")
    analysis = analyse(lab.legs(METADATA, null=True), plan)
    found = {finding.rule: finding for finding in analysis.findings}["null-finds-nothing"]
    assert (found.verdict, found.decides) == (Verdict.FAIL, False)
    assert (analysis.verdict, analysis.null_verdict) == (N, Verdict.PASS)


def test_a_proof_without_its_form_is_unusable() -> None:
    legs = lab.legs(METADATA)
    put(B1, "ranks_captured|0|candidate|builds", "48")(legs)
    with pytest.raises(UnusableEvidenceError, match="block 1 B1 rank 0 candidate proof: builds"):
        analyse(legs)


TOLD_FIRST = {
    "acceptance-possible-rising": "counters-add-up",
    "acceptance-drift-down": "cycles-account",
    "cross-leg-exact-token": "teacher-exact",
    "figures-taken-no draft": "counters-present",
    "long-next-next": "teacher-exact",
    "long-next-short": "cycles-account",
    "no-ngram-ngram": "proposals-whole",
    "no-ngram-no method": "proposals-whole",
    "no-warm-up-generated": "counters-start-zero",
    "phase-1-stop-went on": "cycle-saving",
    "proposals-whole-untold": "server-called",
    "rollover-none": "counters-add-up",
    "rollover-token": "teacher-exact",
    "rollover-two": "counters-add-up",
    "same-prompts-fewer": "suite-passed",
    "servers-fresh-nonce": "server-ours",
    "servers-fresh-process": "server-ours",
    "servers-fresh-request": "fresh-unique",
    "sole-treatment-argument": "server-called",
    "sole-treatment-variable": "selector-observed",
    "teacher-exact-prompt": "fresh-unique",
}
"""Mutants whose one fact is another rule's too, which is asked before."""


@caught_first("rule name change verdict reason", MUTANTS, TOLD_FIRST)
def test_the_mutant_is_caught_by_its_rule(rule: str, change: Change, verdict: Verdict, reason: str) -> list[str]:
    legs = lab.legs(METADATA)
    change(legs)
    analysis = analyse(legs)
    told = [finding for finding in analysis.findings if finding.verdict is not Verdict.PASS]
    against = [finding for finding in told if finding.rule == rule]
    assert [finding.verdict for finding in against][:1] == [verdict]
    assert reason in against[0].reason
    assert against[0].decides
    assert analysis.verdict is not Verdict.PASS
    assert analysis.verdict.exit_code >= verdict.exit_code
    assert analysis.promotion is None or not analysis.promotion.promoted
    return [finding.rule for finding in told]


def test_the_legs_keep_every_rule() -> None:
    analysis = analyse(lab.legs(METADATA))
    assert [finding for finding in analysis.findings if finding.verdict is not Verdict.PASS] == []
    assert analysis.verdict is Verdict.PASS
    assert {finding.rule for finding in analysis.findings} == RULES - NULL_RULES - {"interval-superior"}
