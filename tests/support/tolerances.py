"""How far a run may be from one device's where both compute in float32."""

from autoplan.verify.compare import Tolerance

FLOAT32 = Tolerance(loss=1e-6, gradients=1e-5, parameters=float("inf"))
"""Parameters after steps aren't compared: Adam divides gradients near zero by their own size."""
