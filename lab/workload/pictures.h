#pragma once

#include "lab/workload/reading.h"

namespace demi::workload {

/// Pictures made of random numbers.
Loaders random_pictures(const Reading& reading);

/// Pictures of one size, which are read as a whole.
Loaders read_images(const settings::Config& config, const Reading& reading);

/// The loaders of a folder's pictures, each of which is read and decoded when it is asked for, by
/// the workers if there are any.
Loaders list_pictures(const settings::Config& config, const Reading& reading);

}  // namespace demi::workload
