# cuda.mk - the CUDA kernels: src/backend/cuda/*.cu by nvcc into fat binaries, which image.c takes into
# the program. Without nvcc the engine is built all the same and says at run time that it has no
# kernels. They depend on no flag of a build, take minutes to compile and are therefore shared by every
# B: build-cuda/ holds them, each put in place whole. NVCC= (empty) builds without.
ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
endif
CUDA_OUT := build-cuda
# sm_90a code for Hopper; PTX that the driver compiles for other cards. -fmad=false: products and sums
# are contracted where the source says fmaf, as in the rest of the tree.
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -Isrc \
              -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80

ifneq ($(NVCC),)
CUDA_KERNELS := step mul_one mul_four mega tensor row lone
CUDA_FATBINS := $(CUDA_KERNELS:%=$(CUDA_OUT)/%.fatbin)
$(CUDA_OUT)/%.fatbin: src/backend/cuda/%.cu $(wildcard src/backend/cuda/*.cuh) src/backend/cuda/kern.h
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCC_FLAGS) -fatbin -o $@.$(notdir $(B)) $< && mv $@.$(notdir $(B)) $@

CUDA_IMAGE_O := $(B)/obj/src/backend/cuda/image.o
$(CUDA_IMAGE_O): $(CUDA_FATBINS)
$(CUDA_IMAGE_O): CPPFLAGS += -DCUDA_IMAGE_STEP='"$(CUDA_OUT)/step.fatbin"' \
    -DCUDA_IMAGE_ONE='"$(CUDA_OUT)/mul_one.fatbin"' -DCUDA_IMAGE_FOUR='"$(CUDA_OUT)/mul_four.fatbin"' \
    -DCUDA_IMAGE_MEGA='"$(CUDA_OUT)/mega.fatbin"' -DCUDA_IMAGE_TENSOR='"$(CUDA_OUT)/tensor.fatbin"' \
    -DCUDA_IMAGE_ROW='"$(CUDA_OUT)/row.fatbin"' -DCUDA_IMAGE_LONE='"$(CUDA_OUT)/lone.fatbin"'
endif
