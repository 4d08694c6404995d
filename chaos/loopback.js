// Loaded into servers that can't be told an address: they listen on this machine alone, and say when they do.
// They end with the process that started them, however that ends.
const net = require('node:net')
const listen = net.Server.prototype.listen
const parent = process.ppid
setInterval(() => process.ppid === parent || process.exit(), 1000).unref()

net.Server.prototype.listen = function (where, ...rest) {
  this.once('listening', () => console.log(`listening on port ${this.address().port}`))
  return typeof where === 'object'
    ? listen.call(this, { ...where, host: '127.0.0.1' }, ...rest)
    : listen.call(this, where, '127.0.0.1', ...rest)
}
