# graph.mk - the library that the graph engine loads at run time, for tests and for trying it out: the
# part of the Python package openvino that it needs, in $(B)/graph-runtime, where a program in $(B)
# finds it by itself. Nothing is linked against it. Once it is there, or in the cache, no network is
# needed. Builds with a sanitizer do without: it is not built with one.
GRAPH_RUNTIME := $(B)/graph-runtime
HETERO_OPENVINO ?= $(if $(SAN),none,$(abspath $(GRAPH_RUNTIME)))
export HETERO_OPENVINO

.PHONY: graph-runtime
graph-runtime:
	$(Q)sh mk/graph-runtime.sh $(GRAPH_RUNTIME)
ifeq ($(SAN),)
test test-full test-c test-e2e: graph-runtime
endif
