// Of process_worker --wire-dtype: what f32 becomes that is bf16 or f16 on the network, element by element, by
// the reference of proto/reduce. Apart from the worker, because those names and client.hpp's do not go
// together.
#pragma once

#include <string>
#include <vector>

// Whether there is such a type.
bool is_wire_dtype(const std::string& dtype);
float on_the_wire(float value, const std::string& dtype);
// Each of `values`, in that order, is of a host.
float sum_on_the_wire(const std::vector<float>& values, const std::string& dtype);
