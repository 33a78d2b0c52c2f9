// Each op file adds its methods to the Python class.
#pragma once
#include "args.h"
#include "backend.h"

namespace colibri {

using BackendClass = nb::class_<Backend>;

void bind_attention(BackendClass& c);
void bind_dequantise(BackendClass& c);
void bind_elementwise(BackendClass& c);
void bind_embed(BackendClass& c);
void bind_expert_units(BackendClass& c);
void bind_gate(BackendClass& c);
void bind_group(BackendClass& c);
void bind_limits(BackendClass& c);
void bind_linear(BackendClass& c);
void bind_merge(BackendClass& c);
void bind_norm(BackendClass& c);
void bind_quantise(BackendClass& c);
void bind_rope(BackendClass& c);
void bind_sampling(BackendClass& c);

}  // namespace colibri
