# A fresh machine needs two commands: `make quickstart` and `make test`. `make help` lists the others.

# The Python that makes .venv: PYTHON, or else the first of these that is of a supported version.
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Where it is set, pytest keeps no rewritten file: each of three processes rewrites all assertions, 6 seconds each.
unexport PYTHONDONTWRITEBYTECODE

# True of a .venv that was made to the end (pip's own metadata comes last) and in which no installation was cut short.
HEALTHY := $(if $(wildcard $(VENV)/.installing),,$(shell $(BIN)/python -c \
    "import importlib.metadata as m, sys; m.version('pip'); print(sys.version_info >= (3, 11))" 2>/dev/null))
ifneq ($(HEALTHY),True)
$(shell rm -f $(VENV)/.installed-*)
endif

# Tests of floors 0-3 that depend on the backend, and so run on JAX too. `make test-all` adds the graphs of the analyses.
# The models of published sizes come first, when the processes beside them are small.
ON_JAX := test_reference.py kernels layers models test_applications.py test_cost_measured.py test_imagenet.py \
    test_repository.py test_round_trips.py $(addprefix weights/test_,keras_h5.py model_file.py restore.py variables.py)
ALSO_ON_JAX := analyze/test_families.py $(addprefix analyze/test_attention.py::test_,sums_in_the_graph_are_those_of_the_weights \
    these_weights_reproduce_what_each_block_of_each_model_gives) weights/test_save.py
# Most of the time on JAX goes into compiling small programs. Kept, a second run takes a third of the time; compiled
# without optimization, the first one takes half.
JAX_CACHE := JAX_COMPILATION_CACHE_DIR=$(VENV)/jax-cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
UNOPTIMIZED := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false \
    --xla_cpu_parallel_codegen_split_count=1
# Two files run side by side on two cores, and tiny models gain nothing from a second thread: a tenth of the time.
ONE_THREAD := TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 OMP_NUM_THREADS=1
UNASKED := not network and not accelerator
# The processes of pytest grow with every file. To save memory, `make test` starts new ones once, and `make test-all` four
# times. Exporting models of published sizes takes most, so it comes late, when JAX has ended or is about to.
LIGHT := $(addprefix tests/,analyze data evaluate kernels layers models photos serving)
tensorflow_1 := $(LIGHT)
tensorflow_2 := tests/train tests/weights
tensorflow_3 := tests/export
tensorflow_4 := $(wildcard tests/test_[a-d]*.py)
tensorflow_5 := tests $(patsubst %,--ignore=%,$(tensorflow_1) $(tensorflow_2) $(tensorflow_3) $(tensorflow_4))
tensorflow_234 := tests $(tensorflow_1:%=--ignore=%)
PARTS := tensorflow_1 tensorflow_2 tensorflow_3 tensorflow_4 tensorflow_5

.PHONY: help quickstart test test-all profile lint style format wheel distributions docs tutorials oldest clean
.NOTPARALLEL: # two installations into one environment

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

quickstart: $(VENV)/.installed-quickstart ## install what it needs, then the first full run: pre-train, fine-tune, export, ask
	@$(BIN)/python -m keras_vit quickstart

test: style ## what to run before each commit: linters, every contract on TensorFlow, floors 0-3 on JAX
	$(call run_tests,not slow and $(UNASKED),$(ON_JAX),,tensorflow_1 tensorflow_234,--unoptimized)

# In the order of the files: what fails after half an hour fails again. `make test` shuffles.
test-all: style ## the same, and the long campaigns at full length
	$(call run_tests,$(UNASKED),$(ON_JAX) $(ALSO_ON_JAX),-p no:randomly,$(PARTS))

profile: $(VENV)/.installed-test ## where the time and the memory of test-all go, as a table
	@$(MAKE) --no-print-directory test-all PROFILE=$(VENV)/profile
	@$(BIN)/python tests/profiler.py $(addprefix $(VENV)/profile/,$(PARTS) jax)

# Most tests keep one core busy, so two run at a time; a worker that has none left takes half of the other's. JAX and the
# check of types take what those two leave of the processor while they wait for servers and killed processes. What failed
# is named once more at the very end, where whoever reads the last lines of a long log finds it.
# On JAX, `make test-all` makes layers quickly too, because Keras compiles a program for each shape that it draws.
# $(1): which marks run; $(2): which tests run on JAX; $(3): more for pytest; $(4): the variables above whose tests run
# on TensorFlow, one after the other; $(5): more for pytest there.
define run_tests
@echo "Tests on TensorFlow, and beside them on JAX and the check of types:"
@nice -n 10 $(BIN)/basedpyright > $(VENV)/types.log 2>&1 & types=$$!; \
KERAS_BACKEND=jax XLA_FLAGS="$(UNOPTIMIZED)" $(JAX_CACHE) nice -n 10 $(BIN)/python -m pytest -q -m "$(1)" $(3) \
    --unoptimized $(2:%=tests/%) $(PROFILE:%=--profile=%/jax) > $(VENV)/jax-tests.log 2>&1 & jax=$$!; \
on_tensorflow=0; rm -f $(VENV)/tensorflow-tests.log; \
$(foreach part,$(4),$(ONE_THREAD) KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q -m "$(1)" $(3) $(5) -n 2 --dist worksteal \
    $($(part)) $(PROFILE:%=--profile=%/$(part)) 2>&1 | tee -a $(VENV)/tensorflow-tests.log || on_tensorflow=1; \
)wait $$jax; on_jax=$$?; [ $$on_jax = 0 ] || cat $(VENV)/jax-tests.log; \
wait $$types; of_types=$$?; cat $(VENV)/types.log; \
for half in jax tensorflow; do \
    echo "Tests on $$half:"; grep -E "^(FAILED|ERROR|INTERNALERROR|Using --randomly|[0-9]+ (passed|failed|skipped|errors?))" \
        $(VENV)/$$half-tests.log | cut -c 1-300 || tail -n 5 $(VENV)/$$half-tests.log; \
done; \
exit $$((on_tensorflow + on_jax + of_types))
endef

lint: style ## style, spelling, types of floors 0-3
	$(BIN)/basedpyright

style: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

format: $(VENV)/.installed-test ## rewrite the files as `make lint` wants them, where that is mechanical
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Every supported Python at hand, on the PATH or of pyenv.
AT_HAND = $(shell for minor in 11 12 13; do \
    for python in python3.$$minor $(HOME)/.pyenv/versions/3.$$minor.*/bin/python; do \
        if $$python -c "" 2>/dev/null; then echo $$python; break; fi; \
    done; done)

# The wheel brings its dependencies, and nothing else is installed.
wheel: $(VENV)/.installed-venv ## build dist/*.whl, then install and use it in an empty environment of each Python at hand
	@rm -rf build dist
	$(BIN)/python -m pip wheel -qq --no-deps --wheel-dir dist .
	@for python in $(or $(AT_HAND),$(BIN)/python); do \
	    rm -rf build && $$python -m venv build/empty || exit 1; \
	    build/empty/bin/python --version; \
	    build/empty/bin/python -m pip install -qq dist/*.whl || exit 1; \
	    (cd build && empty/bin/python -c "$(IMPORT_EVERYTHING)" && empty/bin/keras-vit info ViT_Ti16) || exit 1; \
	done

define IMPORT_EVERYTHING
import importlib, importlib.resources, pkgutil, keras_vit; \
names = [m.name for m in pkgutil.walk_packages(keras_vit.__path__, 'keras_vit.') if not m.name.endswith(('__main__', 'jax_step'))]; \
[importlib.import_module(name) for name in names]; \
labels = importlib.resources.files('keras_vit').joinpath('labels').iterdir(); \
print('keras_vit', keras_vit.__version__, 'from', keras_vit.__file__); \
print(len(names), 'modules, labels:', *sorted(path.name for path in labels))
endef

# The second build is of another folder, umask and moment.
distributions: $(VENV)/.installed-venv ## build the wheel and the source distribution of the last commit: dist/*, twice, compared byte for byte
	@rm -rf build dist && $(BIN)/python -m venv build/backend
	build/backend/bin/python -m pip install -qq -r release/requirements.txt
	build/backend/bin/python release/distributions.py --output=dist
	@umask 077 && git clone -q . build/elsewhere
	@umask 077 && build/backend/bin/python release/distributions.py --source=build/elsewhere --output=build/again > /dev/null
	@cd dist && for file in *; do cmp "$$file" "../build/again/$$file" || exit 1; done
	build/backend/bin/twine check --strict dist/*

docs: $(VENV)/.installed-test ## build the site: site/index.html; warnings are errors
	@KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser. No server is needed."

tutorials: $(VENV)/.installed-test ## execute the notebooks of docs/tutorials and store their outputs
	@for notebook in docs/tutorials/*.ipynb; do \
	    echo "$$notebook"; \
	    KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python website/execute.py "$$notebook" || exit 1; \
	done

oldest: $(VENV)/.installed-venv ## the quick tests on TensorFlow with the oldest dependencies that setup.cfg accepts
	@rm -rf build/oldest && $(BIN)/python -m venv build/oldest
	@$(BIN)/python release/oldest.py > build/oldest/constraints.txt && cat build/oldest/constraints.txt
	build/oldest/bin/python -m pip install -qq -c build/oldest/constraints.txt -e ".[test]"
	$(ONE_THREAD) KERAS_BACKEND=tensorflow build/oldest/bin/python -m pytest -q -n 2 --dist worksteal tests

clean: ## remove the environment, builds and caches; saved_models/ stays
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written when everything before it has succeeded: a finished installation is never repeated, one that was
# cut short starts again in a new environment. The two share one environment; that of the tests contains the other.
define install
@touch $(VENV)/.installing
@$(BIN)/python -m pip install -qq -e ".[$(1)]" || { rm $(VENV)/.installing; exit 1; }
@rm $(VENV)/.installing
endef

$(VENV)/.installed-quickstart: setup.cfg pyproject.toml | $(VENV)/.installed-venv
	@echo "Installing keras_vit and TensorFlow into $(VENV). This happens once and takes a few minutes."
	$(call install,quickstart)
	@touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml | $(VENV)/.installed-venv
	@echo "Installing keras_vit, TensorFlow, JAX and the linters into $(VENV). This happens once and takes a few minutes."
	$(call install,test)
	@touch $(VENV)/.installed-quickstart $@

$(VENV)/.installed-venv:
ifneq ($(HEALTHY),True)
	@for python in $(CANDIDATES); do \
	    if $$python -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" 2>/dev/null; then \
	        exec $$python -m venv --clear $(VENV); \
	    fi; \
	done; \
	echo "keras_vit needs Python 3.11, 3.12 or 3.13. Tried: $(CANDIDATES)." >&2; \
	echo "Install one of them, or name it: make test PYTHON=/path/to/python3.12" >&2; \
	exit 1
endif
	@touch $@
