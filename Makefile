# The front door. Every target installs what is missing, builds what is stale and does its job.
PRESET ?= release

.PHONY: all deps build demo test sanitize fuzz bench cuda emulated-gpu format check-format clean
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

sanitize: deps
	@scripts/sanitize.sh

fuzz: deps
	@scripts/fuzz.sh

bench: build
	@bench/run.sh

cuda: deps
	@ARCHS="$(ARCHS)" scripts/cuda.sh

emulated-gpu: deps
	@scripts/emulated-gpu.sh

format: deps
	@scripts/format.sh -i

check-format: deps
	@scripts/format.sh --dry-run -Werror

clean:
	rm -rf build build-*
