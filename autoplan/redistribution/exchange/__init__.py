"""Direct exchanges: who sends which box of a tensor to whom, and the traffic on the links.

Order: `boxes` (what each rank holds), `messages` (what is sent), `traffic` (the busiest rank and its seconds).
"""
