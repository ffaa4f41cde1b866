"""Where training starts from, in words."""

from autoplan.ir.start import Start


def start_text(start: Start) -> str:
    """One or two sentences; "" for a plan that says nothing of it."""
    again = again_text(start)
    if start.stored:
        return stored_text(start) + (f"; init_weights(seed) draws others: {again}" if again else "")
    if start.repeats:
        return again
    if not start.name or not start.unknown:
        return ""
    why = f" ({start.why})" if start.why else ", which are on the meta device"
    return (
        f"UNKNOWN: {start.name} says nothing of the values of {start.unknown_text}{why}. train.py needs --weights; or "
        "plan the function that makes the model, parallelize(make_model, ...)"
    )


def stored_text(start: Start) -> str:
    """Which values come with the plan."""
    if start.folder:
        return f"the weights in {start.folder}, which stay there; export notes their hashes"
    if start.seed is not None:
        return f"the values that {start.name} made under seed {start.seed}; no other seed, for {start.why}"
    why = f" ({start.why})" if start.why and not start.repeats else ""
    return f"the values that the model holds, which export writes beside the plan{why}"


def again_text(start: Start) -> str:
    """How the model is made again, and whether that was compared; "" where that isn't known."""
    if not start.repeats:
        return ""
    return f"{start.name} run again under a seed, {'compared with it bit for bit' if start.compared else start.why}"
