"""All ranks together: from the calls of one rank of each class what the whole world does.

Whether every collective meets its members and every message its peer; whether the order on the streams admits an end;
and, with a price on each call, how long the step takes. Nothing here needs torch.

Order: `colour_refinement` (classes of ranks that no simulation tells apart), `channels` (calls by what orders them),
`alignment` (where two sequences first differ), `sentences` (calls in words), `matching` (what doesn't meet), `script`
(a trace as it is simulated), `deadlock` (who waits for whom), `simulation` (the events), `simulated_step` (the step).
"""
