// The shortest iteration that any scheduler could reach for given layers, times and links.
//
// An iteration begins with backward: it computes layer L-1, L-2, ... 0, and when layer i is done the
// gradients of i may be pushed. Then comes forward of the next iteration: layer 0, 1, ... L-1, where i may
// begin only when what was pushed for i has been pulled. As forward needs all layers, nothing of an iteration
// is under way when the next one's backward begins, so iterations do not overlap and one of them, from
// backward's begin to forward's end, is the steady state.
//
// The model: compute is one machine, never slower than its timer. The network is another one that moves a
// byte (pushed by all workers, pulled by all) in t*/M seconds, as a fluid: any share of it can go to any
// layer at any time, nothing is lost by changing, a byte is pulled the moment it has been pushed (push and
// pull use opposite directions of full-duplex links), and any byte can be on any server.
//
// Why no implementation is faster: t*/M is the optimum of a linear program over placements
// (bench/commands/tstar.h). By its duality there are weights of the links, one direction, such that each
// byte, wherever it is placed, uses up at least t*/M of the weighted capacity, which is 1 a second. So layer
// i takes bytes_i * t*/M of one machine that it shares with all others, after its backward and before its
// pull is done. (Its pull adds at least nothing to that.) What is left is one machine, preemption, release
// times r_i, and after the transfer C_i the rest of forward, tail_i = sum of forward j for j >= i: the
// iteration is
//
//   T = max(all compute, max over i of (C_i + tail_i)).
//
// Tails shrink with i, and preemptively serving the largest tail first minimises that maximum (Jackson's rule
// with preemption: Horn, Some simple scheduling algorithms, 1974), so "the layer that forward needs first"
// is the best of all orders, not only a good one.
//
// FIFO, in the same model, is what a system without priority could reach at best. Pure.
#pragma once

#include <span>
#include <vector>

namespace bps::bench {

struct FluidLayer {
  double forward_s = 0;
  double backward_s = 0;
  double transfer_s = 0;  // bytes of the layer's gradients * t*/M
};

enum class FluidOrder { priority, fifo };

struct FluidSchedule {
  double iteration_s = 0;
  std::vector<double> transferred_s;  // per layer: C_i, from the begin of backward
};

// `layers` in forward order.
FluidSchedule fluid_schedule(std::span<const FluidLayer> layers, FluidOrder order);

}  // namespace bps::bench
