// SPDX-License-Identifier: Apache-2.0
// What the cases of stream.nc.cc include; compiled once for all of them.
#pragma once

#include <type_traits>
#include <utility>

#include "models/decoder_layer.h"
#include "models/layers/lm_head.h"
#include "models/layers/norm.h"
#include "models/residual/boundary.h"
#include "models/step.h"
