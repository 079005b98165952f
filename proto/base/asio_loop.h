// The loop under its former name, for those who still include it.
#pragma once

#include "proto/base/epoll_loop.h"
