"use strict";

// What can go wrong, as one tree. The texts say what was wrong, the value, the limit, and what to do; the fields
// are documented in index.d.cts.

class LockkeeperError extends Error {
  constructor(message, fields = {}) {
    super(message);
    Object.assign(this, fields);
  }

  get name() {
    return this.constructor.name;
  }

  get code() {
    return this.constructor.code;
  }
}

const classes = { LockkeeperError };
LockkeeperError.code = "LOCKKEEPER";

function define(name, code, parent = LockkeeperError) {
  classes[name] = { [name]: class extends parent {} }[name];
  classes[name].code = code;
}

define("LockLost", "LOCK_LOST");
define("InvalidUrl", "INVALID_URL");
define("InvalidName", "INVALID_NAME");
define("InvalidOption", "INVALID_OPTION");
define("Unsupported", "UNSUPPORTED");
define("BackendError", "BACKEND");
define("ConnectError", "CONNECT", classes.BackendError);
define("Denied", "DENIED", classes.BackendError);
define("NeedsOperator", "NEEDS_OPERATOR", classes.BackendError);
define("Refused", "REFUSED", classes.BackendError);
define("LimitReached", "LIMIT_REACHED", classes.BackendError);
define("Unreachable", "UNREACHABLE", classes.BackendError);
define("AcquireError", "ACQUIRE");
define("Busy", "BUSY", classes.AcquireError);
define("Deadlock", "DEADLOCK", classes.AcquireError);
define("AcquireTimeout", "TIMED_OUT", classes.AcquireError);
define("Ambiguous", "AMBIGUOUS", classes.AcquireError);
define("ReleaseNotConfirmed", "RELEASE_NOT_CONFIRMED");
define("DoneTwice", "DONE_TWICE");
define("NotRecorded", "NOT_RECORDED");
define("NoAnswer", "NO_ANSWER");
define("Released", "RELEASED");
define("FenceError", "FENCE");
define("Stale", "STALE", classes.FenceError);
define("Repeated", "REPEATED", classes.FenceError);
define("NotFenced", "NOT_FENCED", classes.FenceError);
define("EffectFailed", "EFFECT_FAILED", classes.FenceError);
define("ConditionFailed", "CONDITION_FAILED", classes.FenceError);

/** The error that the native module has described. */
function described(json) {
  const { class: name, message, ...fields } = JSON.parse(json);
  return new classes[name](message, fields);
}

/** Calls the native module, whose errors are JSON, except those of arguments of a wrong type. */
function native(call) {
  try {
    return call();
  } catch (error) {
    if (error.message.startsWith('{"')) throw described(error.message);
    throw Object.assign(new TypeError(error.message), { code: "ERR_INVALID_ARG_TYPE" });
  }
}

/** Refuses options of other names. */
function checkNames(what, options, known) {
  for (const option of Object.keys(options)) {
    if (known.includes(option)) continue;
    const limit = known.join(", ");
    throw new classes.InvalidOption(`\`${option}\` is no option of ${what}; there are ${limit}`, { option, limit });
  }
}

module.exports = { ...classes, checkNames, described, native };
