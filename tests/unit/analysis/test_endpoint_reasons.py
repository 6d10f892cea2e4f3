# SPDX-License-Identifier: Apache-2.0
"""What each rule over one leg says, to the letter, and what it lets pass at its edge."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

from pytest_laguna.analysis.arms.arm_pair import CANDIDATE
from pytest_laguna.analysis.endpoint.case import LegCase
from pytest_laguna.analysis.endpoint.leg_rules import LEG_RULES
from pytest_laguna.analysis.findings import Finding
from pytest_laguna.verdict import Verdict
from tests import endpoint_legs as lab

Leg = dict[str, Any]
Change = Callable[[Leg], object]

STARTS = lab.metadata_starts()
MADE = {
    name: lab.leg(name, 1, number, STARTS[name], candidate=name > "B") for number, name in enumerate(("A1", "B1"), 1)
}
V, F, N = Verdict.VOID, Verdict.FAIL, Verdict.NOT_PROVEN
LAYER, FLAG = lab.LAYER, lab.FLAG


def said(rule: str, change: Change, leg: str = "B1", **planned: Any) -> Finding | None:
    value = copy.deepcopy(MADE[leg])
    change(value)
    return LEG_RULES[rule](LegCase(lab.plan(**planned), lab.TEACHER, lab.records([value])[0]))


def put(path: str, *values: Any) -> Change:
    """Set one field; the path is joined by bars, numbers index lists."""

    def change(leg: Leg) -> None:
        *parents, last = path.split("|")
        target: Any = leg
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        [target[int(last) if isinstance(target, list) else last]] = values

    return change


def each(*changes: Change) -> Change:
    return lambda leg: [change(leg) for change in changes]


def after(**counted: Any) -> Change:
    return lambda leg: leg["counters_after"].update(counted)


def before(**counted: Any) -> Change:
    return lambda leg: leg["counters_before"].update(counted)


def told(**arguments: Any) -> Change:
    return lambda leg: leg["request"]["engine_arguments"].update(arguments)


def rows(count: int) -> Change:
    return lambda leg: leg["rows"].__delitem__(slice(count, None))


UNCOUNTED = dict.fromkeys(("drafts", "draft_tokens", "accepted"))
COUNTED = MADE["B1"]["ranks_captured"][0]["candidate"]["layers"][LAYER]
CLASSES = [*CANDIDATE]
ACTIVE = "flag, classes, lane, validator, target layers, those with counters and those with a state"
TWELVE = lab.SUITE.model_copy(update={"prompts": 12})
PROCESSES = [(rank, 2020 + rank, 6020 + rank) for rank in range(lab.RANKS)]
GAP = {"0": 0, "2": 0}
LOST = (put("end|process|reason", "supervisor-lost"), put("end|process|proven_empty", False))
LEFT = {"pid": 7, "command": "x", "start_ticks": 1}
UNDECLARED = "seen no observation; expected one"
ZEROS, ORDER = "0" * 64, MADE["B1"]["ranks_captured"][0]["graphs"][0]["order_sha256"]
SEVEN = {str(position): 0 for position in range(7)}

PLACES = ("freshness|prompt_ids|3", "freshness|prompt_ids|4")
TWICE = each(*(put(path, "x") for path in ("rows|3|prompt_id", "rows|4|prompt_id", *PLACES)))

REASONS: list[tuple[str, Change, Verdict | None, str]] = [
    ("counters-present", after(drafts=None, accepted=None, finished={}), N,
        "counters after the suite: seen no drafts, accepted, finished; expected each"),
    ("counters-present", before(accepted_per_position={}, decode_count=None), N,
        "counters before the suite: seen no decode_count, accepted_per_position; expected each"),
    ("counters-start-zero", before(drafts=1, accepted=1), V,
        "drafts before the suite: seen 1; expected 0 on a fresh server"),
    ("counters-start-zero", before(draft_tokens=-1), V,
        "draft_tokens before the suite: seen -1; expected 0 on a fresh server"),
    ("counters-start-zero", before(accepted=2), V, "accepted before the suite: seen 2; expected 0 on a fresh server"),
    ("counters-start-zero", before(prompt_tokens=3), V,
        "prompt_tokens before the suite: seen 3; expected 0 on a fresh server"),
    ("counters-start-zero", before(generated_tokens=4), V,
        "generated_tokens before the suite: seen 4; expected 0 on a fresh server"),
    ("counters-start-zero", before(accepted_per_position=SEVEN | {"6": 1}), V,
        "accepted_per_position 6 before the suite: seen 1; expected 0 on a fresh server"),
    ("counters-start-zero", before(finished={"stop": 0, "abort": 1}), V,
        "finished abort before the suite: seen 1; expected 0 on a fresh server"),
    ("counters-rise", before(prefix_cache_queries=2), V,
        "prefix_cache_queries: seen a change by -2; expected a counter to rise"),
    ("counters-rise", before(decode_seconds=1000.0), V,
        "decode_seconds: seen a change by -916.6963001225678; expected a counter to rise"),
    ("counters-rise", after(decode_seconds=0.0), None, ""),
    ("counters-rise", after(decode_seconds=None), None, ""),
    ("positions-contiguous", after(accepted_per_position={"0": 5, "2": 1}), V,
        f"position labels: seen {[*SEVEN]} before and ['0', '2'] after; expected ['0', '1'] twice"),
    ("positions-contiguous", before(accepted_per_position={"0": 0, "1": 0}), V,
        f"position labels: seen ['0', '1'] before and {[*SEVEN]} after; expected {[*SEVEN]} twice"),
    ("decode-count", after(decode_count=None), V, "decoded requests: seen None; expected exactly 13"),
    ("decode-count", before(decode_count=1), V, "decoded requests: seen 12; expected exactly 13"),
    ("counters-add-up", after(accepted=None), V, "accepted over positions: seen 4644; expected None"),
    ("counters-add-up", after(finished={"stop": 2, "length": 10}), V, "finished requests: seen 12; expected 13"),
    ("counters-add-up", after(prompt_tokens=None), V, "prompt tokens: seen None; expected 2364"),
    ("counters-add-up", before(generated_tokens=1), V, "generated tokens: seen 6353; expected 6354"),
    ("acceptance-possible", after(**UNCOUNTED), V,
        ("seen 0 drafts, 0 proposed and 0 accepted tokens; "
        "expected a draft, and no more accepted than proposed tokens")),
    ("acceptance-possible", after(draft_tokens=None), V,
        (
            "seen 1718 drafts, 0 proposed and 4644 accepted tokens; expected a draft, and no more accepted than "
            "proposed tokens"
        )),
    ("acceptance-possible", after(accepted_per_position=SEVEN | {"0": 1719}), V,
        "position 0: seen 1719 acceptances; expected at most 1718"),
    ("acceptance-possible", after(accepted_per_position=SEVEN | {"0": 1718}), None, ""),
    ("acceptance-possible", after(accepted_per_position=SEVEN | {"0": 7, "1": 7, "2": 8}), V,
        "position 2: seen 8 acceptances; expected at most 7"),
    ("acceptance-possible", each(before(accepted_per_position=GAP), after(accepted_per_position=GAP)), None, ""),
    ("proposals-whole", after(drafts=None), V,
        ("seen 0 drafts with 12026 tokens, at 7 positions; "
        "expected 7 tokens a draft")),
    ("proposals-whole", after(drafts=0, draft_tokens=None), None, ""),
    ("proposals-whole", after(accepted_per_position={"0": 0}), V,
        "seen 1718 drafts with 12026 tokens, at 1 positions; expected 7 tokens a draft"),
    ("proposals-whole", told(speculative_config=None), N,
        "the server's arguments: seen no number of drafted tokens; expected one"),
    ("proposals-whole", told(speculative_config={"num_speculative_tokens": "7"}), N,
        "the server's arguments: seen no number of drafted tokens; expected one"),
    ("cycles-account", after(**UNCOUNTED), V,
        "drafts and accepted tokens: seen 0; expected 6341 to 6432 for the rows"),
    ("cycles-account", after(drafts=1000, accepted=5341), None, ""),
    ("cycles-account", after(drafts=1000, accepted=5340), V,
        "drafts and accepted tokens: seen 6340; expected 6341 to 6432 for the rows"),
    ("cycles-account", after(drafts=1000, accepted=5432), None, ""),
    ("cycles-account", after(drafts=1000, accepted=5433), V,
        "drafts and accepted tokens: seen 6433; expected 6341 to 6432 for the rows"),
    ("cycles-account", each(told(speculative_config={}), after(drafts=1000, accepted=5341)), None, ""),
    ("cycles-account", each(told(speculative_config={}), after(drafts=1000, accepted=5342)), V,
        "drafts and accepted tokens: seen 6342; expected 6341 to 6341 for the rows"),
    ("decode-time-possible", after(decode_seconds=None), None, ""),
    ("decode-time-possible", before(decode_seconds=50.0), V,
        "decode time: seen 33.3037 s; expected 74.3233 to 85.9037 s by the arrivals"),
    ("prefix-cache-cold", before(prefix_cache_hits=1, external_cache_hits=0), V,
        "before the suite: seen {'prefix_cache_hits': 1}; expected no hit in any tier"),
    ("prefix-cache-cold", before(cached_prompt_tokens=3), V,
        "before the suite: seen {'cached_prompt_tokens': 3}; expected no hit in any tier"),
    ("prefix-cache-cold", after(external_cache_hits=2, cached_prompt_tokens=5), V,
        "after the suite: seen {'external_cache_hits': 2, 'cached_prompt_tokens': 5}; expected no hit in any tier"),
    ("prefix-cache-cold", after(external_cache_hits=None, cached_prompt_tokens=None), None, ""),
    ("prefix-cache-cold", after(prefix_cache_hits=None), N,
        "prefix_cache_hits: seen no counter; expected it"),
    ("no-preemption", after(preemptions=3), V,
        "preemptions: seen 3; expected none of one request at a time; enlarge the cache"),
    ("no-preemption", each(before(preemptions=2), after(preemptions=2)), V,
        "preemptions: seen 2; expected none of one request at a time; enlarge the cache"),
    ("no-preemption", before(preemptions=None), N, "preemptions: seen no counter; expected it"),
    ("leg-named", put("request|arm", "graph-control"), V,
        f"arm and {FLAG}: seen graph-control and '1'; expected graph-candidate and '1'"),
    ("leg-named", put("request|variables", {}), V,
        f"arm and {FLAG}: seen graph-candidate and None; expected graph-candidate and '1'"),
    ("suite-passed", put("request|suite|prompts", 12), V, f"suite: seen {TWELVE}; expected {lab.SUITE}"),
    ("suite-passed", put("rows|12|index", 13), V,
        "rows: seen [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13]; expected each of 13 once and in order"),
    ("server-ours", put("server|models", ["laguna", "x"]), V,
        "names of the server: seen ['laguna', 'x']; expected ['00000000000000000000000000000002', 'laguna']"),
    ("server-ours", put("server|listener_after|address", "127.0.0.1:8001"), V,
        "the port's socket: seen 902 at 127.0.0.1:8000 before and 902 at 127.0.0.1:8001 after; expected the same"),
    ("server-ours", put("server|listener_after|inode", 7), V,
        "the port's socket: seen 902 at 127.0.0.1:8000 before and 7 at 127.0.0.1:8000 after; expected the same"),
    ("server-ours", put("server|listener_before|holders", [5]), V,
        "127.0.0.1:8000: seen holders [5]; expected server 1002"),
    ("server-ours", put("rows|12|model", "x"), V,
        "row 12: seen an answer by 'x'; expected ['00000000000000000000000000000002', 'laguna']"),
    ("server-ours", put("rows|12|model", f"{2:032x}"), None, ""),
    ("server-called", put("server|listener_before|address", "127.0.0.1:"), V,
        "the server's address: seen 127.0.0.1:; expected a port of 127.0.0.1"),
    ("server-called", put("server|listener_before|address", "8000"), V,
        "the server's address: seen 8000; expected a port of 127.0.0.1"),
    ("server-called", lambda leg: leg["server"]["argv"].pop(), V,
        "the server's command: seen None; expected the request's '--tensor-parallel-size=4'"),
    ("selector-observed", put("ranks_captured|1|variables", {}), V,
        f"rank 1 (captured): {FLAG}: seen None; expected '1'"),
    ("selector-observed", put("ranks_served|3|variables|OMP_NUM_THREADS", "2"), V,
        "rank 3 (served): OMP_NUM_THREADS: seen '2'; expected '1'"),
    ("captures-proven", told(tensor_parallel_size=2), V, "tensor_parallel_size: seen 2; expected 4"),
    ("captures-proven", lambda leg: leg["request"]["engine_arguments"].pop("tensor_parallel_size"), V,
        "tensor_parallel_size: seen 1; expected 4"),
    ("captures-proven", lambda leg: leg["ranks_served"].pop(), N,
        "served: seen ranks [0, 1, 2]; expected each of 4 once"),
    ("captures-proven", put("ranks_served|1|moment", "captured"), N,
        "served: seen rank 1 (captured); expected each rank's state at that moment"),
    ("captures-proven", put("ranks_captured|2|graphs|0|breaks", 144), F,
        "rank 2 (captured): seen graphs and breaks [(146, 144)]; expected [(146, 145)]"),
    ("captures-proven", put("ranks_served|3|graphs|0|model", "draft"), F,
        "rank 3 (served): seen graphs and breaks []; expected [(146, 145)]"),
    ("captures-proven", put("ranks_served|3|graphs|0|order_sha256", "0" * 64), F,
        f"segment orders: seen ['{ZEROS}', '{ORDER}']; expected one on every rank"),
    ("draft-captured", put("ranks_captured|3|graphs|1|model", "target"), F,
        "rank 3 (captured): seen no graph of the draft; expected one"),
    ("draft-captured", put("ranks_captured|0|graphs|1|graphs", 4), F,
        "rank 1 (captured): seen other graphs of the draft; expected the first rank's"),
    ("one-at-a-time", put("rows|1|sent_ns", 0), V, "row 1: seen before row 0 had ended; expected one at a time"),
    ("one-at-a-time", put("rows|1|sent_ns", MADE["B1"]["rows"][0]["done_ns"]), None, ""),
    ("one-at-a-time", put("rows|1|sent_ns", MADE["B1"]["rows"][0]["done_ns"] - 1), V,
        "row 1: seen before row 0 had ended; expected one at a time"),
    ("rows-complete", put("rows|0|usage|completion_tokens", 511), V,
        "row 0: seen 512 tokens; expected the server's count of 511"),
    ("rows-complete", put("rows|0|arrival_ns", [0] * 512), V,
        "row 0: seen 512 tokens; expected 100 that take some time"),
    ("rows-complete", put("rows|10|finish_reason", "length"), V,
        "row 10: seen its end by 'length' after 296 tokens; expected 'stop', or 'length' at the suite's bound"),
    ("rows-complete", put("rows|0|finish_reason", "stop"), None, ""),
    ("rows-complete", put("final_gate|completion_tokens", [1]), V,
        ("the kept streams: seen rows and tokens (13, [1]); expected (13, [512, 512, 512, 512, 512, "
        "512, 512, 512, 512, 512, 296, 426, 512])")),
    ("fresh-unique", put("rows|3|prompt_id", "x"), V,
        "prompt ids: seen others in the freshness block; expected those of the rows"),
    ("fresh-unique", put("rows|3|prompt_sha256", "0" * 64), V,
        "prompt digests: seen others in the freshness block; expected those of the rows"),
    ("fresh-unique", put("rows|3|request_id", "x"), V,
        "request ids: seen others in the freshness block; expected those of the rows"),
    ("fresh-unique", TWICE, V, "prompt ids: seen 12 different of 13; expected each once"),
    ("cached-zero", put("rows|12|usage|cached_tokens", 1), V,
        "cached tokens of the rows: seen [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]; expected 13 zeros"),
    ("cached-zero", put("freshness|cached_tokens", []), V,
        "cached tokens of the freshness: seen []; expected 13 zeros"),
    ("cached-zero", put("final_gate|cached_tokens", [1]), V,
        "cached tokens of the final gate: seen [1]; expected 13 zeros"),
    ("cleanup-clean", put("end|cleanup|worker_status", 1), F,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 1, 'idle_status': 0}; "
        "expected no process left and idle cards")),
    ("cleanup-clean", each(put("end|cleanup|worker_status", 1), *LOST), N,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 1, 'idle_status': 0}; "
        "expected proof that no process is left")),
    ("cleanup-clean", each(put("end|cleanup|worker_status", 1), put("end|cleanup|idle_status", 1), *LOST), F,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 1, 'idle_status': 1}; "
        "expected no process left and idle cards")),
    ("cleanup-clean", each(put("end|cleanup|worker_status", 1), put("end|process|proven_empty", False)), F,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 1, 'idle_status': 0}; "
        "expected no process left and idle cards")),
    ("cleanup-clean", each(put("end|cleanup|worker_status", 1), put("end|process|survivors", [LEFT]), *LOST), F,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 1, 'idle_status': 0}; "
        "expected no process left and idle cards")),
    ("cleanup-clean", put("end|cleanup|idle_status", 1), F,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 0, 'idle_status': 1}; "
        "expected no process left and idle cards")),
    ("cleanup-clean", put("end|cleanup|original_status", 1), V,
        (
            "cleanup: seen {'original_status': 1, 'stop_status': 0, 'worker_status': 0, 'idle_status': 0}, no "
            "reason; expected zeros"
        )),
    ("cleanup-clean", put("end|cleanup|stop_status", 1), V,
        (
            "cleanup: seen {'original_status': 0, 'stop_status': 1, 'worker_status': 0, 'idle_status': 0}, no "
            "reason; expected zeros"
        )),
    ("cleanup-clean", put("end|reason", "row 3 broke off"), V,
        ("cleanup: seen {'original_status': 0, 'stop_status': 0, 'worker_status': 0, 'idle_status': 0}, "
        "row 3 broke off; expected zeros")),
    ("cleanup-clean", put("end|cleanup|idle_status", None), N,
        "cleanup: seen no check of idle cards afterwards; expected idle_status 0"),
    ("server-ended", put("end|process", None), N,
        "the server's end: seen no record; expected the supervisor's"),
    ("server-ended", put("end|process|reason", "exited"), V,
        ("the server: seen exited, exit code 0 after 200.0 s; expected its end by a stop, "
        "without a kill")),
    ("server-ended", put("end|process|wait_status", 9), V,
        "the server: seen stopped, SIGKILL after 200.0 s; expected its end by a stop, without a kill"),
    ("server-ended", put("end|process|last_signal", 9), F,
        "the server: seen a process of it that had to be killed; expected none"),
    ("server-ended", put("end|process|last_signal", 15), None, ""),
    ("teacher-exact", rows(11), F, "11 of 13 rows are exact; row 11: seen none; expected one"),
    ("teacher-exact", put("rows|5|usage|cached_tokens", 64), F,
        "12 of 13 rows are exact; row 5: seen 64 prompt tokens from a cache; expected 0"),
    ("long-next", rows(1), F, "row 1: seen none; expected one"),
    ("long-next", put("rows|0|usage|completion_tokens", 511), F, "row 0: seen 511 tokens; expected 512"),
    ("long-next", put("rows|2|usage|cached_tokens", 1), None, ""),
    ("long-next", put("rows|0|usage|cached_tokens", 1), F, "row 0: seen 1 prompt tokens from a cache; expected 0"),
    ("rollover", put("rows|12|usage|prompt_tokens", 862), V,
        "prompts of 863 tokens or more: seen in rows []; expected exactly one"),
    ("rollover", put("rows|2|usage|prompt_tokens", 863), V,
        "prompts of 863 tokens or more: seen in rows [2, 12]; expected exactly one"),
    ("rollover", put("rows|12|usage|cached_tokens", 1), F, "row 12: seen 1 prompt tokens from a cache; expected 0"),
    ("rollover", put("rows|11|usage|cached_tokens", 1), None, ""),
    ("figures-taken", after(drafts=None), N,
        "figures: seen none; expected two rows with a rate at least, and counters of a draft"),
    ("no-retry", put("facts|no_retry", None), N, UNDECLARED),
    ("no-retry", put("facts|no_retry|holds", False), V, "seen what showed no_retry; expected the fact to hold"),
    ("no-retry", put("posted", 12), V, "requests: seen 12 for 13 rows; expected one each"),
    ("no-retry", put("rows|1|request_id", "leg-2-row-0"), V, "request ids: seen 12 in 13 rows; expected each once"),
    ("no-retry", put("rows|1|response_id", "chatcmpl-2-0"), V, "response ids: seen 12 in 13 rows; expected each once"),
    ("no-warm-up", put("facts|no_warm_up|holds", False), V, "seen what showed no_warm_up; expected the fact to hold"),
    ("no-warm-up", before(generated_tokens=1), V, "before the first row: seen 1 generated tokens; expected none"),
    ("no-warm-up", each(put("facts|no_warm_up", None), before(generated_tokens=1)), N, UNDECLARED),
    ("fresh-service", put("facts|fresh_service|holds", False), V,
        "seen what showed fresh_service; expected the fact to hold"),
    ("fresh-service", put("begun_ticks", 5003), V,
        ("start ticks: seen the leg begin at 5003, the server at 5002 and its ranks at [6020, 6021, 6022, 6023]; "
        "expected that order")),
    ("fresh-service", put("begun_ticks", 5002), None, ""),
    ("fresh-service", put("server|start_ticks", 6020), None, ""),
    ("fresh-service", put("server|start_ticks", 6021), V,
        ("start ticks: seen the leg begin at 4002, the server at 6021 and its ranks at [6020, 6021, 6022, 6023]; "
        "expected that order")),
    ("fresh-service", put("ranks_served|3|pid", 4), V,
        (f"ranks, pids and starts: seen {PROCESSES} before and [(0, 2020, 6020), (1, 2021, 6021), (2, 2022, 6022), "
        "(3, 4, 6023)] after; expected the same")),
    ("fresh-service", put("ranks_served|3|start_ticks", 7000), V,
        (f"ranks, pids and starts: seen {PROCESSES} before and [(0, 2020, 6020), (1, 2021, 6021), (2, 2022, 6022), "
        "(3, 2023, 7000)] after; expected the same")),
    ("fresh-service", lambda leg: leg["ranks_served"].reverse(), None, ""),
    ("fresh-service", each(put("ranks_served", []), put("ranks_captured", [])), None, ""),
    ("no-network", put("facts|no_network|holds", False), V, "seen what showed no_network; expected the fact to hold"),
    ("no-network", put("sockets|0|foreign", ["a", "b"]), V,
        "after ready: seen a socket to a; expected none"),
    ("no-network", put("sockets|0|local", ["tcp 127.0.0.1:8001 -> listening"]), N,
        ("after ready: seen no socket of the server itself; expected tcp 127.0.0.1:8000 -> listening, as proof "
        "of a working snapshot")),
    ("no-network", put("sockets", []), N,
        "after python-lru-cache: seen no snapshot of the sockets; expected one after every row"),
    ("no-network", lambda leg: leg["sockets"].pop(), N,
        "after long-rollover-repository-audit: seen no snapshot of the sockets; expected one after every row"),
    ("no-network", lambda leg: leg["sockets"].pop(0), None, ""),
    ("no-history", put("facts|no_history|holds", False), V, "seen what showed no_history; expected the fact to hold"),
    ("no-ngram", put("facts|no_ngram|holds", False), V, "seen what showed no_ngram; expected the fact to hold"),
    ("no-ngram", told(speculative_config=None), None, ""),
    ("no-ngram", told(speculative_config="dflash"), V,
        "speculative method: seen None; expected one with a draft model"),
    ("no-ngram", told(speculative_config={"method": "suffix"}), V,
        "speculative method: seen 'suffix'; expected one with a draft model"),
    ("no-ngram", put("ranks_served|3|candidate|draft_layers", []), V,
        "rank 3: seen no layer of a draft model; expected one"),
    ("no-ngram", lambda leg: leg["ranks_captured"][2]["candidate"].pop("draft_layers"), V,
        "rank 2: seen no layer of a draft model; expected one"),
    ("no-ngram", each(told(speculative_config=None), put("facts|no_ngram", None)), N, UNDECLARED),
    ("no-response-reuse", put("facts|no_response_reuse", None), N, UNDECLARED),
    ("no-prefix-reuse", put("facts|no_prefix_reuse|holds", False), V,
        "seen what showed no_prefix_reuse; expected the fact to hold"),
    ("no-prefix-reuse", told(enable_prefix_caching=None), V,
        "enable_prefix_caching: seen None; expected False"),
    ("no-prefix-reuse", told(enable_prefix_caching=0), V,
        "enable_prefix_caching: seen 0; expected False"),
    ("candidate-active", put("ranks_captured|0|candidate|flag", False), F,
        (f"rank 0 (captured): seen {ACTIVE} (False, {CLASSES}, 'xpu', 'native', 1, 1, 1); expected (True, {CLASSES}, "
        "'xpu', 'native', 1, 1, 1)")),
    ("candidate-active", put("ranks_captured|0|candidate|backends", []), F,
        (f"rank 0 (captured): seen {ACTIVE} (True, ['laguna_kv.backend.LagunaFlashAttentionImpl'], 'xpu', 'native', 1, "
        f"1, 1); expected (True, {CLASSES}, 'xpu', 'native', 1, 1, 1)")),
    ("candidate-active", put("ranks_captured|3|candidate|layers", {"x": COUNTED}), F,
        "rank 3 (captured): seen counters of x; expected those of target layers only"),
    ("views-built-once", put("ranks_served|2|candidate|draft_layers_with_state", 2), F,
        "rank 2 (served): seen 2 draft layers with a state; expected none"),
    ("views-built-once", put(f"ranks_served|2|candidate|layers|{LAYER}|builds", 0), F,
        f"rank 2 (served): {LAYER}: seen 0 builds and 0 invalidations; expected 1 and 0"),
    ("views-built-once", put(f"ranks_captured|3|candidate|layers|{LAYER}|invalidations", 1), F,
        f"rank 3 (captured): {LAYER}: seen 1 builds and 1 invalidations; expected 1 and 0"),
    ("views-built-once", put("ranks_served|2|candidate|builds", 2), V,
        "rank 2 (served): builds: seen 2; expected 1, the sum over the layers"),
    ("views-built-once", put("ranks_served|2|candidate|update_hits", 2), V,
        "rank 2 (served): update_hits: seen 2; expected 15, the sum over the layers"),
    ("views-used", put("ranks_captured|2|candidate|layers", {}), F,
        f"rank 2 (served): {LAYER}: seen counters, but none before the first request; expected them at both moments"),
    ("views-used", put(f"ranks_captured|2|candidate|layers|{LAYER}|forward_hits", 14), F,
        (f"rank 2 (served): {LAYER}: seen views used 1717 times forward and 13 times in updates during the suite; "
        "expected 1718 and 1 at least")),
    ("views-used", put(f"ranks_captured|2|candidate|layers|{LAYER}|forward_hits", 13), None, ""),
    ("views-used", put(f"ranks_captured|2|candidate|layers|{LAYER}|update_hits", 15), F,
        (f"rank 2 (served): {LAYER}: seen views used 1731 times forward and 0 times in updates during the suite; "
        "expected 1718 and 1 at least")),
    ("views-used", put(f"ranks_captured|2|candidate|layers|{LAYER}|update_hits", 14), None, ""),
    ("views-used", each(after(drafts=None), put(f"ranks_captured|2|candidate|layers|{LAYER}|forward_hits", 1731)), F,
        (f"rank 2 (served): {LAYER}: seen views used 0 times forward and 13 times in updates during the suite; "
        "expected 1 and 1 at least")),
    ("views-used", each(after(drafts=None), put(f"ranks_captured|2|candidate|layers|{LAYER}|forward_hits", 1730)), None,
        ""),
]  # fmt: skip


IDS = [f"{rule}-{number}" for number, (rule, *_) in enumerate(REASONS)]


@pytest.mark.parametrize(("rule", "change", "verdict", "reason"), REASONS, ids=IDS)
def test_a_rule_says_what_it_saw_and_what_it_expected(
    rule: str, change: Change, verdict: Verdict | None, reason: str
) -> None:
    assert said(rule, change) == (None if verdict is None else (verdict, reason))


@pytest.mark.parametrize(
    ("counted", "verdict", "reason"),
    [
        ({"draft_layers_with_state": 1}, F, "rank 1 (served): seen 1 draft layers with a state; expected none"),
        ({"forward_hits": 3}, V, "rank 1 (served): forward_hits: seen 3; expected 0, the sum over the layers"),
    ],
)
def test_a_control_has_no_views(counted: dict[str, int], verdict: Verdict, reason: str) -> None:
    changed = put("ranks_served|1|candidate", MADE["A1"]["ranks_served"][1]["candidate"] | counted)
    assert said("views-built-once", changed, "A1") == (verdict, reason)
    assert said("views-used", changed, "A1") is None


def test_decode_time_is_possible_up_to_its_bounds() -> None:
    [leg] = lab.records([MADE["B1"]])
    span = sum(row.arrival_ns[-1] - row.arrival_ns[0] for row in leg.rows) / 1e9
    shortest, longest = span - (0.1 * span + 0.05 * 13), sum(row.done_ns for row in leg.rows) / 1e9
    beyond = (math.nextafter(shortest, 0.0), math.nextafter(longest, math.inf))
    for seconds, possible in ((shortest, True), (longest, True), (beyond[0], False), (beyond[1], False)):
        counters = leg.counters_after.model_copy(update={"decode_seconds": seconds})
        case = LegCase(lab.plan(), lab.TEACHER, leg.model_copy(update={"counters_after": counters}))
        assert (LEG_RULES["decode-time-possible"](case) is None) is possible


@pytest.mark.parametrize("leg", MADE)
@pytest.mark.parametrize("rule", LEG_RULES)
def test_a_good_leg_is_not_spoken_against(rule: str, leg: str) -> None:
    assert said(rule, lambda _: None, leg) is None


@pytest.mark.parametrize("rule", ["teacher-exact", "long-next", "rollover"])
def test_without_a_teacher_rows_are_compared_with_nothing(rule: str) -> None:
    [record] = lab.records([MADE["A1"]])
    assert LEG_RULES[rule](LegCase(lab.plan(), None, record)) == (
        N,
        "teacher: seen no control's record; expected one to compare the rows with",
    )
