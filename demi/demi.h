#pragma once

// Everything that a training program needs. Each header can also be included by itself.
#include "demi/autocast/autocast.h"
#include "demi/autocast/backward.h"
#include "demi/autocast/policy.h"
#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/ema.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/lr_scheduler.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/train/trainer.h"
