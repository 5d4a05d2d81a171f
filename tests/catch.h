// The test framework, whichever of its two versions the distribution has.
#pragma once

#ifdef OLMO_CATCH2_V3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
