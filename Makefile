# The front door. Every target installs what is missing, builds what is stale and does its job.
PRESET ?= release
BUILD  := build

.PHONY: all deps build demo test bench cuda clean
all: build

deps:
	@scripts/install-packages.sh

build: deps
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build --preset $(PRESET)

demo: build
	@scripts/demo.sh

test: deps
	@scripts/test.sh

bench: build
	@bench/run.sh

cuda:
	@echo "not yet: this version of snug runs on the CPU only"; exit 1

clean:
	rm -rf build build-*
