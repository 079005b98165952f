// Whether a function that we declared is called like the one of a header: as many parameters, and each of the
// same size and nature. Types cannot be compared, because ours are opaque.
#pragma once

#include <type_traits>

namespace bps {

template <class Ours, class Theirs>
constexpr bool same_shape_of_values() {
  return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
         std::is_class_v<Ours> == std::is_class_v<Theirs>;
}

template <class Ours, class Theirs>
struct SameShape : std::false_type {};

template <class OurResult, class TheirResult, class... Ours, class... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameShape<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<same_shape_of_values<OurResult, TheirResult>() &&
                         (same_shape_of_values<Ours, Theirs>() && ...)> {
};

template <class Ours, class Theirs>
inline constexpr bool kSameShape = SameShape<Ours, Theirs>::value;

}  // namespace bps
