// Stands in for cuBLASLt's header: FlashInfer's nv_internal includes it beside cublas_v2.h and uses no name of it.
#pragma once
#include "cublas_v2.h"
