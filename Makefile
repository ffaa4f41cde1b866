# make demo         plan Llama-3-70B, then plan, verify, export and train a small Llama on four processes
# make test         lint, then the tests (what continuous integration runs)
# make test-all     the slow tests too
# make lint         ruff and mypy
# make correctness  the table of appendix/correctness.md: each model under each parallelism against one device
# make systems      the matrix of appendix/systems.md: each named system on Llama, GPT-2 and BERT, in float64 and bf16-mixed;
#                   and the table of systems.md: papers, pins, prices
# make convergence  losses of a small Llama under each asynchronous system, beside the synchronous one: appendix/convergence.md
# make zoo          the table of appendix/models.md: architectures of transformers under several parallelisms, in float64 and,
#                   under torchrun, in float32
# make zoo-wide     the table of appendix/models_wide.md: 330 models of libraries and hand-written ones; goes on with what
#                   the same sources found (build/models_wide.json), WIDE="--seconds 600" stops early
# make starts       models that set their own values, planned from their function and their values: equal at the start
# make attacks      what users and accidents do to models, trainings and folders: silent 0, lost 0, traceback 0
# make elastic     a node of a training killed and one come back, 8 ranks, 6, 8: every loss is one process's; then with
#                   a batch that is scaled with the ranks
# make corruptions  700 damaged checkpoints, weights and plan folders each: refused, or the same values; none unnoticed
# make journeys     a new user in an empty folder: own model, Hugging Face folder, Trainer; planned to evaluated
# make test-kill    50 kills of ranks that train, saves included, and 20 of two jobs on one folder: nothing of it shows
# make mutations  1,000 faults in rehearsed plans, and how many are found; COUNT and PLANS say how many, in which
# make rehearsals large jobs planned and rehearsed at full size, on no GPU: appendix/rehearsals.md; JOBS names some
# make two-nodes    each named system on two nodes, resumed there, against one node: appendix/two_nodes.md
# make recipes      recipes that others ran, as they pinned them and freely: appendix/recipes.md; goes on where it was cut off
# make exported-configs  20 of them as other trainers' configurations, read by these: appendix/exported_configs.md
# make rules        rules beside DTensor's strategies, every disagreement explained: appendix/rules.md
# make validate     predicted times and bytes against published measurements: accuracy.md, appendix/accuracy.md and
#                   its plot
# make plans        published choices of parallelism beside ours, both priced: appendix/plans.md
# make reference    docs/glossary.md and docs/appendix/modules.md from docstrings, README.md's report from a plan, the notebook
# make docs         the documentation as a site: build/site/index.html
# make bench-plan   seconds to plan Llama-3-70B for 8x8 h100-sxm
# make bench-search seconds, memory and plans of whole searches, from a ResNet to Llama-3.1-405B on 16,384 devices
# make bench-jobs   the same of 60 further searches, drawn once; AGAINST=before.json shows both and their ratios
# make bench-laws   200 random pins, and laws of the search, over 6 models and their clusters; goes on with what was found
#                   (build/laws.json), LAWS="--laws" or LAWS="--pins 20" tries some
# make bench-live   plans run on four processes against their predicted times: a section of appendix/accuracy.md
# make bench-program  the emitted program beside the module and beside ways by hand, its dropout beside torch's:
#                   appendix/program.md, and performance.md's table of them
# make bench-checkpoint  seconds of a save beside dcp.save, and until an asynchronous one returns
# make gpu          what only a GPU shows, in parts of under ten minutes each on one device: docs/gpu.md; DEVICE names another
# make bench-memory  measured peak memory of ranks beside the predicted: appendix/memory.md
# make bench-redistribution  the figures of docs/redistribution.md: ours and other engines over all pairs of layouts
#
# Everything runs in an environment of its own, .venv, made on first use with the versions of constraints.txt.
# PYTHON names the interpreter it is made from. A machine without a GPU needs no CUDA build of torch:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
SITE := $(VENV)/.installed-docs

# One thread a process: tests and demo run several processes, and sums must not depend on how threads split them.
export OMP_NUM_THREADS = 1
# Bytecode is kept, whatever the environment says, and away from the sources: each of the interpreters that tests start
# would compile all of torch anew, for five seconds.
export PYTHONDONTWRITEBYTECODE =
export PYTHONPYCACHEPREFIX = $(CURDIR)/build/bytecode
export TOKENIZERS_PARALLELISM = false
export HF_HUB_OFFLINE = 1

.PHONY: venv lint test test-all starts correctness systems convergence zoo zoo-wide journeys attacks corruptions elastic test-kill mutations rehearsals two-nodes validate prices plans recipes exported-configs rules reference docs demo bench-plan bench-search bench-jobs bench-laws bench-live bench-memory bench-checkpoint gpu bench-program bench-redistribution clean

venv: $(DEV)

# torch first, on its own: whichever build of it the machine's package index prefers is then kept.
$(RUN): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable '.[hf]'
	touch $@

# timm without what it asks for: torchvision, which it reads images from disks with, has no build for every torch, and
# one that doesn't fit keeps transformers from being imported.
$(DEV): $(RUN)
	$(INSTALL) --editable '.[dev,hf]'
	$(INSTALL) --no-deps timm
	touch $@

$(SITE): $(RUN)
	$(INSTALL) --editable '.[docs]'
	touch $@

lint: $(DEV)
	$(BIN)/ruff check autoplan cost_models tests examples
	$(BIN)/mypy autoplan cost_models

# Three workers on two cores: tests that start processes, or wait for them, leave cores idle.
test: lint
	$(BIN)/python -m pytest -q -n 3 --dist worksteal --durations=10 -m 'not slow'

test-all: lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=20

correctness: $(DEV)
	$(BIN)/python -m tests.bench.correctness

systems: $(DEV)
	$(BIN)/python -m tests.bench.systems --write docs/appendix/systems.md
	$(BIN)/python -m tests.bench.systems_table --write docs/systems.md

convergence: $(DEV)
	$(BIN)/python -W ignore -m tests.bench.convergence --write docs/appendix/convergence.md

zoo: $(DEV)
	$(BIN)/python -m tests.bench.architectures --write docs/appendix/models.md

zoo-wide: $(DEV)
	$(BIN)/python -m tests.bench.wide --write docs/appendix/models_wide.md $(WIDE)

starts: $(DEV)
	$(BIN)/python -m tests.starts

journeys: $(DEV)
	$(BIN)/python -m tests.bench.journeys

attacks: $(DEV)
	$(BIN)/python -m tests.attacks

test-kill: $(DEV)
	$(BIN)/python -m tests.kill --times 50
	$(BIN)/python -m tests.kill --two-jobs 20

elastic: $(DEV)
	$(BIN)/python -W ignore -m tests.kill.elastic
	$(BIN)/python -W ignore -m tests.kill.elastic --batch scale

corruptions: $(DEV)
	$(BIN)/python -m tests.corruptions

validate: $(DEV)
	$(BIN)/python -m tests.bench.closed_form --write docs/appendix/accuracy.md
	$(BIN)/python -W ignore -m tests.bench.published_steps --write docs/appendix/accuracy.md \
		--write-short docs/accuracy.md

prices: $(DEV)
	$(BIN)/python -m tests.bench.prices --write docs/appendix/prices.md

plans: $(DEV)
	$(BIN)/python -m tests.bench.plans_document --write docs/appendix/plans.md

# What was found is kept in build/, so that a run that RECIPES_S cut off goes on.
RECIPES_S ?= inf
recipes: $(DEV)
	$(BIN)/python -m tests.bench.recipes --seconds $(RECIPES_S) --write docs/appendix/recipes.md

# Trainers that aren't installed are told so: pip install deepspeed torchtitan
exported-configs: $(DEV)
	$(BIN)/python -m tests.bench.exported_configs --write docs/appendix/exported_configs.md

rules: $(DEV)
	$(BIN)/python -m tests.bench.rules_document --write docs/appendix/rules.md

reference: $(DEV)
	$(BIN)/python -m tests.bench.reference_document --write
	$(BIN)/python -m tests.bench.readme_report --write README.md
	$(BIN)/python -m tests.bench.notebook

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

demo: $(RUN)
	$(BIN)/python examples/demo.py

bench-plan: $(RUN)
	$(BIN)/python examples/bench_plan.py

bench-search: $(RUN)
	$(BIN)/python examples/bench_search.py --phases

# WRITE and AGAINST name files of measurements.
bench-jobs: $(DEV)
	$(BIN)/python -m tests.bench.search_jobs $(if $(WRITE),--write $(WRITE)) $(if $(AGAINST),--against $(AGAINST))

LAWS ?= --pins 200 --laws
bench-laws: $(DEV)
	$(BIN)/python -W ignore -m tests.bench.laws $(LAWS)

# Two nodes are made of one machine by a tool that lies outside: TWO_NODES names it, ip and tc have to be there.
TWO_NODES ?= ../shared/tools/two-nodes
bench-live: $(DEV)
	$(BIN)/python -m tests.bench.live --two-nodes $(TWO_NODES) --write docs/appendix/accuracy.md

bench-program: $(DEV)
	$(BIN)/python -m tests.bench.program --write docs/appendix/program.md
	$(BIN)/python -m tests.bench.performance --write docs/performance.md

bench-memory: $(DEV)
	$(BIN)/python -m tests.bench.memory --write docs/appendix/memory.md

bench-checkpoint: $(DEV)
	$(BIN)/python -m tests.bench.checkpoint

# PARTS names some of correctness, one-rank, calibrated, predicted, trace.
DEVICE ?= cuda
gpu: $(DEV)
	$(BIN)/python -m tests.bench.gpu --device $(DEVICE) --write docs/gpu.md $(PARTS)

COUNT ?= 1000
mutations: $(DEV)
	$(BIN)/python -m tests.bench.mutations --faults $(COUNT) $(PLANS)

rehearsals: $(DEV)
	$(BIN)/python -m tests.bench.rehearsals --write docs/appendix/rehearsals.md $(JOBS)

two-nodes: $(DEV)
	$(BIN)/python -m tests.bench.two_nodes --two-nodes $(TWO_NODES) --write docs/appendix/two_nodes.md

bench-redistribution: $(DEV)
	$(BIN)/python -m tests.bench.bench_redistribution

clean:
	rm -rf $(VENV) demo build *.egg-info
