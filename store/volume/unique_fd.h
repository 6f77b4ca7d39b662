#pragma once

#include "store/base/unique_fd.h"
