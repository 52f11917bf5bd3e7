# ForgeLM from a clone. `make run` is all that a first try needs; everything lands in .venv and in the XDG directories.

PYTHON ?= python3
# Passed to `forgelm serve`: make run ARGS="--port 9000"
ARGS ?=
BIN := $(HOME)/.local/bin

# How llama.cpp is compiled: native (this processor), portable (any) or dev (for a debugger). Unset: as it was before.
MODE ?=

.PHONY: help setup cuda cuda-show run test check install uninstall lock pins bump image image-cuda image-test

help:
	@echo "make run        set up, fetch the starter model and serve it on 127.0.0.1:8080 (ARGS: flags of forgelm serve)"
	@echo "make setup      .venv with the locked packages; compiles llama.cpp once (CMAKE_ARGS: more flags; MODE: native, portable, dev)"
	@echo "make cuda       the same with NVIDIA's kernels; needs no CUDA installation (CUDACXX: an nvcc of your own)"
	@echo "make cuda-show  what the CUDA build holds: sizes, architectures and needed libraries"
	@echo "make test       set up and run all tests (ARGS: flags of pytest)"
	@echo "make check      lint, types and tests"
	@echo "make install    put the forgelm command on PATH, in ~/.local/bin"
	@echo "make uninstall  take it away again; 'forgelm paths' names the directories to delete"
	@echo "make nix-check  evaluate the Nix flake without a network"
	@echo "make nix-configure configure the flake's engine with the real sdist"
	@echo "make nix-wheels renew the hashes of the wheels that the flake takes, after make lock"
	@echo "make lock       renew requirements.lock and requirements-dev.lock from pyproject.toml"
	@echo "make notices    write THIRD_PARTY_NOTICES anew, after make lock"
	@echo "make pins       compare containers/pins.json with what can be downloaded, and show what is newer (ARGS=--download: 530 MB more)"
	@echo "make bump       PIN=VERSION: build and test another llama-cpp-python in build/bump-VERSION, and show what changed"
	@echo "make image      the container image forgelm:latest, with docker, podman or buildah (ARGS: flags of its build)"
	@echo "make image-cuda the image forgelm:latest-cuda for NVIDIA cards, likewise"
	@echo "make image-test build the image twice, run it as a container and look at what it does (ARGS: see containers/LOG.md)"

setup:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is missing: sudo apt install python3" >&2; exit 1; }
	@$(if $(MODE),FORGELM_BUILD_MODE="$(MODE)") "$(PYTHON)" forgelm/bootstrap.py

cuda: export FORGELM_BUILD_CUDA = 1
cuda: setup

cuda-show:
	@.venv/bin/python containers/show_cuda.py

# `exec`: the server is make's own child, so that a signal to make reaches it and nothing is left behind.
run: setup
	@.venv/bin/forgelm pull starter >/dev/null
	@exec .venv/bin/forgelm serve --profile starter $(ARGS)

test: setup
	@.venv/bin/python -m pytest $(ARGS)

check: setup
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/python -m pytest $(ARGS)

install: setup
	@mkdir -p "$(BIN)"
	@if [ -e "$(BIN)/forgelm" ] && [ ! -L "$(BIN)/forgelm" ]; then \
		echo "$(BIN)/forgelm is there and is no link of ours: move it away first" >&2; exit 1; fi
	@ln -sfn "$(CURDIR)/.venv/bin/forgelm" "$(BIN)/forgelm"
	@echo "Linked $(BIN)/forgelm"
	@case ":$$PATH:" in *":$(BIN):"*) ;; *) \
		echo "$(BIN) isn't on PATH yet: add  export PATH=\"\$$HOME/.local/bin:\$$PATH\"  to ~/.profile and log in again" ;; esac

uninstall:
	@if [ "$$(readlink "$(BIN)/forgelm")" = "$(CURDIR)/.venv/bin/forgelm" ]; then \
		rm "$(BIN)/forgelm" && echo "Removed $(BIN)/forgelm"; \
	else echo "$(BIN)/forgelm isn't a link to this clone: nothing to remove"; fi

# One version of everything for both files: the second is resolved under the first. No index is named in them.
COMPILE = CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe \
	--strip-extras --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: setup
	@rm -rf build/lock && .venv/bin/python -m venv --without-pip build/lock
	@.venv/bin/python -m pip --python build/lock/bin/python install --quiet "pip-tools>=7.5,<8"
	$(COMPILE) --upgrade --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra dev --constraint requirements.lock --upgrade --output-file requirements-dev.lock pyproject.toml
	@rm -rf build/lock

notices: setup
	@.venv/bin/python containers/notices.py

pins: setup
	@.venv/bin/python -m containers.pins verify $(ARGS)

bump: setup
	@test -n "$(PIN)" || { echo "which version of llama-cpp-python? make bump PIN=1.2.3" >&2; exit 1; }
	@.venv/bin/python -m containers.pins bump "$(PIN)"

image:
	@$(PYTHON) containers/image.py forgelm $(ARGS)

image-cuda:
	@$(PYTHON) containers/image.py forgelm-cuda $(ARGS)

image-test: setup
	@.venv/bin/python -m tests.containers.check_image $(ARGS)

# tests/nix/README.md: both evaluate the flake without a network, against a stand-in for nixpkgs.
.PHONY: nix-check nix-configure nix-wheels

nix-check: setup
	@.venv/bin/python -m pytest tests/nix $(ARGS)

# The engine as far as CMake's configuration, with the sdist that the pins name.
nix-configure: setup
	@mkdir -p build/nix
	@.venv/bin/python -m pip download --quiet --no-deps --no-binary :all: --dest build/nix \
		"$$(grep -o '^llama-cpp-python==[0-9.]*' requirements.lock)"
	@FORGELM_SDIST_DIR="$(CURDIR)/build/nix" .venv/bin/python -m pytest tests/nix/configure_engine.py $(ARGS)

# After `make lock`: the hashes of the wheels that the flake takes.
nix-wheels: setup
	@.venv/bin/python containers/nix/wheels.py
