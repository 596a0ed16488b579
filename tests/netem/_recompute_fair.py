"""Max-min fair sharing by recomputing every rate at every event: slow, short, easy to believe."""

import math

from netem.fair_flow import ROUNDING_FRACTION


def fair_rates(access_bps, capacity_bps):
    """Rates, in the order given, of flows that are limited to ``access_bps`` each: fill and cut."""
    rates = list(access_bps)
    left_bps = capacity_bps
    by_rate = sorted(range(len(rates)), key=rates.__getitem__)
    for done, index in enumerate(by_rate):
        level_bps = left_bps / (len(rates) - done)
        if rates[index] > level_bps:
            for above in by_rate[done:]:
                rates[above] = level_bps
            break
        left_bps = max(0.0, left_bps - rates[index])
    return rates


def recomputed_finish_s(flows, capacity, until_s=math.inf):
    """When each (start_s, size_bits, access curve) ends; inf for one that has not by ``until_s``.

    From event to event: look up all rates, share, find the first thing to happen, deliver.
    """
    finish_s, left = [math.inf] * len(flows), [bits for _, bits, _ in flows]
    now_s = min((start_s for start_s, _, _ in flows), default=math.inf)
    while now_s < until_s:
        open_ = [i for i, flow in enumerate(flows) if flow[0] <= now_s and finish_s[i] == math.inf]
        for index in [i for i in open_ if left[i] <= ROUNDING_FRACTION * flows[i][1]]:
            finish_s[index] = now_s
            open_.remove(index)
        rates = fair_rates([flows[i][2].rate_at(now_s) for i in open_], capacity.rate_at(now_s))
        events_s = [start_s for start_s, _, _ in flows if start_s > now_s]
        if open_:
            changes_s = [flows[i][2].next_change_s(now_s) for i in open_]
            events_s += [*changes_s, capacity.next_change_s(now_s)]
        events_s += [now_s + left[i] / bps for i, bps in zip(open_, rates, strict=True) if bps > 0]
        next_s = min(events_s, default=math.inf)
        for index, bps in zip(open_, rates, strict=True):
            done = bps > 0 and now_s + left[index] / bps <= next_s
            left[index] = 0.0 if done else left[index] - bps * (next_s - now_s)
        now_s = next_s
    return finish_s
