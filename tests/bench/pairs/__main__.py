import sys
from tests.bench.pairs.contest import contest, pairs
from tests.bench.pairs.models import SMALL, LARGE
import traceback, time
for case, model in pairs():
    for precision in ("fp32", "bf16-mixed"):
        if len(sys.argv) > 2 and not any(a in f"{case} {model} {precision}" for a in sys.argv[2:]): continue
        t=time.time()
        try:
            r = contest(case, model, precision, (LARGE if int(sys.argv[1]) else SMALL), int(sys.argv[1]))
            print(f"{case:28} {model:16} {precision:10} cpu", ["%.2f"%x for x in r.ratios] if int(sys.argv[1]) else "", "calls", r.calls, round(r.calls[0]/max(1,r.calls[1]),2), "saved", r.saved, round(r.saved[0]/r.saved[1],2), "coll", r.collectives, r.wire_bytes, [tuple(round(x,4) for x in l) for l in r.losses], f"{time.time()-t:.0f}s", flush=True)
        except Exception as e:
            print(case, model, precision, "FAILED", str(e)[-1500:], flush=True)
